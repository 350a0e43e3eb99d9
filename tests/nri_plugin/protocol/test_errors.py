"""nri_plugin.protocol.errors: the exception tree identifies the side at fault."""

from __future__ import annotations

from nri_plugin.protocol import errors


def test_the_tree() -> None:
    assert issubclass(errors.ProtocolError, errors.NriError)
    assert issubclass(errors.LocalProtocolError, errors.ProtocolError)
    assert issubclass(errors.RemoteProtocolError, errors.ProtocolError)
    assert not issubclass(errors.LocalProtocolError, errors.RemoteProtocolError)
    rejected = errors.RegistrationRejected(2, "invalid plugin index")
    assert isinstance(rejected, errors.RemoteProtocolError)
    assert str(rejected) == (
        "the runtime refused the registration (status 2): invalid plugin index"
    )
