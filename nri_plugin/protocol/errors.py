"""Errors of the protocol, by the side that caused them.

    NriError
    ├── LocalProtocolError      our side misused the API: a bug here
    ├── RemoteProtocolError     the runtime violated NRI: the connection must be closed
    │   └── RegistrationRejected  the runtime refused our name, index or version
    └── (nri_plugin.nri adds errors that require a clock or the handler)

Feeding bytes raises only RemoteProtocolError; any other exception is a bug.
"""

from __future__ import annotations


class NriError(Exception):
    """Base of all errors that end a session with the runtime, except the socket's own OSError."""


class LocalProtocolError(NriError):
    """The session's state does not permit the call; nothing was sent."""


class RemoteProtocolError(NriError):
    """Bytes that violate the protocol. Close the connection; its state is unknown."""


class RegistrationRejected(RemoteProtocolError):
    """The runtime answered RegisterPlugin with an error; the same registration will fail again."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"the runtime refused the registration (status {code}): {text}")
        self.code = code
        self.text = text
