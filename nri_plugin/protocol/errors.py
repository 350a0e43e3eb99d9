"""What can go wrong, by who is guilty.

    NriError
    ├── ProtocolError           never raised itself
    │   ├── LocalProtocolError  our side misused the API: a bug here
    │   └── RemoteProtocolError the runtime sent what NRI does not allow: the connection must end
    │       └── RegistrationRejected  the runtime refused our name, index or version
    └── (nri_plugin.connection adds what only a shell with a clock can see)

Feeding bytes raises RemoteProtocolError and nothing else; whatever else escapes is a bug.
"""

from __future__ import annotations


class NriError(Exception):
    """Base of everything that ends a session with the runtime, except the socket's own OSError."""


class ProtocolError(NriError):
    """Base of the two sides' errors."""


class LocalProtocolError(ProtocolError):
    """A call that the state of the session does not allow; nothing was sent."""


class RemoteProtocolError(ProtocolError):
    """Bytes that break the protocol; close the connection, its state is unknown."""


class RegistrationRejected(RemoteProtocolError):
    """The runtime answered RegisterPlugin with an error; the same registration will fail again."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"the runtime refused the registration (status {code}): {text}")
        self.code = code
        self.text = text
