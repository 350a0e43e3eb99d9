"""nri_plugin.protocol.session: registration, Configure and Synchronize, and recorded dialogues."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.protocol import session as session_module
from nri_plugin.protocol import session_events
from nri_plugin.protocol.errors import LocalProtocolError
from nri_plugin.protocol.session import Session, State
from nri_plugin.protocol.session_events import Code, EventMask
from tests.nri_plugin.objects import container, pod
from tests.nri_plugin.protocol.vectors import (
    CONFIGURE_REPLY_EVENTS_8,
    CONTAINERD_CONFIGURE,
    CONTAINERD_SYNCHRONIZE,
    CUTS,
    DIALOGUES,
    GO_CONFIGURE,
    REGISTER_GPUSHARE,
    REGISTER_OK,
    SYNCHRONIZE_REPLY,
    fed,
    split_frames,
)
from tests.nri_plugin.protocol.wire import Wire


def test_the_registration_is_the_recorded_one() -> None:
    session = Session(name="gpushare", index="10", nri_version="")
    session.register()
    assert session.data_to_send() == REGISTER_GPUSHARE
    assert session.data_to_send() == b""
    with pytest.raises(LocalProtocolError, match="registers once"):
        session.register()


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("overtakes", [False, True], ids=["in-order", "configure-first"])
def test_a_recorded_handshake_in_every_cut(
    cut: Callable[[bytes], Iterator[bytes]], overtakes: bool
) -> None:
    session = Session(name="gpuslice", index="50")
    session.register()
    session.data_to_send()
    first, second = (
        (CONTAINERD_CONFIGURE, REGISTER_OK) if overtakes else (REGISTER_OK, CONTAINERD_CONFIGURE)
    )
    received = fed(session.receive_data, cut(first + second[:5]))
    assert len(received) == 1
    assert not session.introduced
    received += fed(session.receive_data, cut(second[5:] + CONTAINERD_SYNCHRONIZE + b"\0\0"))
    assert session.introduced
    configured = session_events.Configured(
        session_events.RuntimeInfo("containerd", "2.4.2+unknown", "v0.12.3", 2000),
        session_events.SERVED_EVENTS,
    )
    assert set(map(type, received[:2])) == {session_events.Registered, session_events.Configured}
    assert configured in received
    assert received[2:] == [session_events.Synchronize(3, 1999, (), ())]
    session.respond(3)
    framed = bytes.fromhex("000000010000001300000009000000010200120710a84c1a020801")
    assert session.data_to_send() == framed + SYNCHRONIZE_REPLY


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("version", DIALOGUES)
def test_a_recorded_lifecycle_in_every_cut(
    version: str, cut: Callable[[bytes], Iterator[bytes]]
) -> None:
    """Both styles of notification give the same events; the session's replies match the
    recording."""
    session = Session(name="gpuslice", index="50")
    session.register()
    received: list[session_events.Event] = []
    for frame in split_frames(DIALOGUES[version]):
        for event in fed(session.receive_data, cut(frame)):
            received.append(event)
            if isinstance(event, session_events.Request):
                assert 0 < event.budget_ms <= 2000
                session.respond(event.request_id)
    assert session.introduced
    # In the recording of 0.12.3 the answer to the registration comes even after Synchronize.
    received.remove(session_events.Registered())
    assert isinstance(received.pop(0), session_events.Configured)
    synchronize, create, validate, start, stop, remove = received
    assert isinstance(synchronize, session_events.Synchronize)
    assert [p.id for p in synchronize.pods] == ["p0"]
    assert [c.id for c in synchronize.containers] == ["c0"]
    assert isinstance(create, session_events.CreateContainer)
    assert (create.pod.uid, list(create.container.env)) == ("u", ["PATH=/bin"])
    assert create.container.mounts[0].options == ["nosuid"]
    assert create.container.linux.devices[0].minor == 3
    assert isinstance(validate, session_events.Validate)
    assert validate.request.adjust.env == [nri.KeyValue(key="X", value="y")]
    owners = validate.request.owners.owners["c-main"].compound[nri.FIELD_ENV].owners
    assert dict(owners) == {"X": "50-gpuslice"}
    for event, kind in (
        (start, session_events.StartContainer),
        (stop, session_events.StopContainer),
        (remove, session_events.RemoveContainer),
    ):
        assert type(event) is kind
        assert event.container.id == "c-main"


def test_configure_of_the_go_adaptation_and_a_single_event() -> None:
    session = Session(name="goplug", index="10", wanted=EventMask.CREATE_CONTAINER)
    session.register()
    session.data_to_send()
    session.receive_data(GO_CONFIGURE)
    sent = session.data_to_send()
    assert sent[18:20] == b"\x12\x06"
    assert sent[20:22] == CONFIGURE_REPLY_EVENTS_8[-2:]
    assert sent[22:] == bytes.fromhex("1a020801")


@pytest.mark.parametrize(
    ("nri_version", "subscribed"), [("v0.8.0", 0x628), ("v0.10.0", 0x2628), ("", 0x2628)]
)
def test_only_supported_events_are_subscribed(nri_version: str, subscribed: int) -> None:
    wire = Wire()
    (configured,) = wire.call(
        "Configure",
        nri.ConfigureRequest(
            runtime_name="containerd", runtime_version="v2.2.7", nri_version=nri_version
        ),
    )
    assert isinstance(configured, session_events.Configured)
    response = nri.ConfigureResponse.FromString(wire.reply().payload)
    assert response.events == configured.events == subscribed
    assert configured.runtime.request_timeout_ms == 2000, "where the runtime reports none"
    assert (response.failure_policy.fail_request, response.failure_policy.keep_connected) == (
        True,
        False,
    )


def test_chunks_of_synchronize_are_joined() -> None:
    wire = Wire()
    wire.configure()
    for n in range(3):
        chunk = nri.SynchronizeRequest(pods=[pod(n)], containers=[container(n)], more=True)
        assert wire.call("Synchronize", chunk) == []
        reply = wire.reply()
        assert nri.SynchronizeResponse.FromString(reply.payload) == nri.SynchronizeResponse(
            more=True
        )
        assert wire.session.state is State.COLLECTING
    last = nri.SynchronizeRequest(pods=[pod(3)])
    assert wire.call("Synchronize", last, timeout_ns=700_000_000) == [
        session_events.Synchronize(
            wire.stream, 700, tuple(map(pod, range(4))), tuple(map(container, range(3)))
        )
    ]
    assert wire.replies() == []
    assert wire.session.state is State.ADOPTING


def test_the_sum_of_the_chunks_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "SYNCHRONIZE_LIMIT_BYTES", 1000)
    wire = Wire()
    wire.configure()
    big = nri.SynchronizeRequest(pods=[pod(1, note="x" * 600)], more=True)
    wire.call("Synchronize", big)
    assert wire.reply().status.code == 0
    assert wire.call("Synchronize", big) == []
    assert wire.reply().status.code == Code.RESOURCE_EXHAUSTED
