"""Errors of the protocol, by the side that caused them.

    NriError
    ├── LocalProtocolError      our side misused the API: a bug here
    ├── RemoteProtocolError     the runtime violated NRI: the connection must be closed
    │   └── RegistrationRejected  the runtime refused our name, index or version
    └── (nri_plugin.nri adds errors that require a clock or the handler)

`Session.receive_data` raises only RemoteProtocolError. Any other exception is a bug.
"""

from __future__ import annotations


class NriError(Exception):
    """Base class of the errors that end a session. The socket's OSError also ends one."""


class LocalProtocolError(NriError):
    """The caller's arguments or the session's state do not permit the call. Nothing was sent."""


class RemoteProtocolError(NriError):
    """The runtime's bytes violate the protocol. The caller must close the connection."""


class RegistrationRejected(RemoteProtocolError):
    """The runtime answered RegisterPlugin with an error. A retry will fail in the same way."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"the runtime refused the registration (status {code}): {text}")
        self.code = code
        self.text = text
