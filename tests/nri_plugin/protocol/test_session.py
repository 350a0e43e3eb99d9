"""nri_plugin.protocol.session: registration, Configure, Synchronize, recorded dialogues, requests,
answers, and messages that are malformed or out of turn."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import pytest
from google.protobuf.message import Message

from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.messages import ttrpc_pb2
from nri_plugin.protocol import nri_versions, session_events
from nri_plugin.protocol import session as session_module
from nri_plugin.protocol.errors import LocalProtocolError, RemoteProtocolError
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
from tests.nri_plugin.protocol.wire import Wire, about_container


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


# --- requests and their answers, and messages that are malformed or out of turn

SERVED = [
    ("CreateContainer", nri.CreateContainerRequest, session_events.CreateContainer),
    ("StartContainer", nri.StartContainerRequest, session_events.StartContainer),
    ("StopContainer", nri.StopContainerRequest, session_events.StopContainer),
    ("RemoveContainer", nri.RemoveContainerRequest, session_events.RemoveContainer),
]


@pytest.mark.parametrize(("method", "request_type", "event"), SERVED, ids=lambda v: str(v)[:16])
def test_an_event_and_its_empty_answer(
    method: str, request_type: type[Message], event: type[session_events.ContainerRequest]
) -> None:
    wire = Wire().serve()
    received = wire.call(method, about_container(request_type), timeout_ns=1_500_000_000)
    assert received == [event(wire.stream, 1500, pod(3), container(4))]
    assert wire.replies() == []
    assert wire.session.respond(wire.stream)
    assert wire.reply() == ttrpc_pb2.Response()


@pytest.mark.parametrize("number", [0, 1, 2, 3, 5, 7, 9, 12, 13, 15, 999])
def test_other_state_changes_are_answered_empty(number: int) -> None:
    wire = Wire().serve("")
    assert (
        wire.call("StateChange", b"\x08" + (b"\xe7\x07" if number == 999 else bytes([number])))
        == []
    )
    assert wire.reply() == ttrpc_pb2.Response()


@pytest.mark.parametrize(
    "method",
    [name for name, m in nri_versions.METHODS.items() if m.event is None and "Container" in name]
    + [name for name in nri_versions.METHODS if "PodSandbox" in name],
)
@pytest.mark.parametrize("serving", [False, True], ids=["before", "serving"])
def test_what_we_do_not_serve_is_answered_empty(method: str, serving: bool) -> None:
    wire = Wire().serve() if serving else Wire()
    assert wire.call(method) == []
    assert wire.reply() == ttrpc_pb2.Response()


def test_validation_and_its_three_answers() -> None:
    wire = Wire().serve()
    request = nri.ValidateContainerAdjustmentRequest(pod=pod(1), container=container(2))
    request.owners.owners["container-2"].compound[nri.FIELD_ENV].owners["FOO"] = "50-gpuslice"
    assert wire.call("ValidateContainerAdjustment", request) == [
        session_events.Validate(wire.stream, 2000, request)
    ]
    assert wire.session.respond(wire.stream)
    assert wire.reply() == ttrpc_pb2.Response()
    wire.call("ValidateContainerAdjustment", request)
    wire.session.fail(wire.stream, Code.UNKNOWN, "our mount is gone: \udcff")
    response = wire.reply()
    assert response.status.code == 0
    assert nri.ValidateContainerAdjustmentResponse.FromString(
        response.payload
    ) == nri.ValidateContainerAdjustmentResponse(reject=True, reason="our mount is gone: ?")


def adopting(wire: Wire) -> None:
    wire.configure()
    wire.call("Synchronize")


OUT_OF_TURN: dict[str, tuple[Callable[[Wire], object], str, bytes]] = {
    "event-first": (lambda wire: None, "CreateContainer", b""),
    "synchronize-first": (lambda wire: None, "Synchronize", b""),
    "state-change-first": (lambda wire: None, "StateChange", b"\x08\x06"),
    "event-before-synchronize": (Wire.configure, "CreateContainer", b""),
    "configure-twice": (Wire.configure, "Configure", b""),
    "event-while-adopting": (adopting, "StopContainer", b""),
    "twice-synchronized": (Wire.serve, "Synchronize", b""),
    "configure-while-serving": (Wire.serve, "Configure", b""),
}


@pytest.mark.parametrize(("prepare", "method", "payload"), OUT_OF_TURN.values(), ids=OUT_OF_TURN)
def test_out_of_turn_is_an_error_and_the_session_stays(
    prepare: Callable[[Wire], object], method: str, payload: bytes
) -> None:
    wire = Wire()
    prepare(wire)
    state = wire.session.state
    assert wire.call(method, payload) == []
    status = wire.reply().status
    assert status.code == Code.FAILED_PRECONDITION
    assert status.message == (f"{method} comes out of turn: the session is {state.name.lower()}")
    assert wire.session.state is state


@pytest.mark.parametrize(
    ("service", "method"),
    [
        (nri_versions.PLUGIN_SERVICE, "AdjustPodSandboxNetwork"),
        (nri_versions.RUNTIME_SERVICE, "RegisterPlugin"),
        ("", ""),
    ],
)
def test_an_unknown_method_is_unimplemented(service: str, method: str) -> None:
    wire = Wire().serve()
    assert wire.call(method, service=service) == []
    assert wire.reply().status.code == Code.UNIMPLEMENTED


@pytest.mark.parametrize("method", [m for m in nri_versions.METHODS if m != "Shutdown"])
def test_an_undecodable_request_is_an_error_and_the_session_stays(method: str) -> None:
    wire = Wire().serve()
    assert wire.call(method, b"\x0a\xff\xff") == []
    status = wire.reply().status
    assert status.code == Code.INVALID_ARGUMENT
    assert "cannot be decoded" in status.message
    assert wire.session.state is State.SERVING


def test_answers_are_given_once_and_of_the_right_kind() -> None:
    wire = Wire().serve()
    wire.call("StopContainer")
    with pytest.raises(LocalProtocolError, match="where a StopContainerResponse is due"):
        wire.session.respond(wire.stream, nri.CreateContainerResponse())
    assert wire.session.respond(wire.stream, nri.StopContainerResponse())
    for answer in (
        lambda: wire.session.respond(wire.stream),
        lambda: wire.session.fail(wire.stream, Code.UNKNOWN, ""),
        lambda: wire.session.respond(99, nri.Empty()),
    ):
        with pytest.raises(LocalProtocolError, match="answered twice"):
            answer()


def test_shutdown_is_answered_and_closes() -> None:
    wire = Wire().serve()
    wire.call("CreateContainer")
    open_request = wire.stream
    assert wire.call("Shutdown") == [session_events.ShutDown()]
    assert wire.reply() == ttrpc_pb2.Response()
    assert wire.session.closed
    with pytest.raises(LocalProtocolError, match="no request waits"):
        wire.session.respond(open_request)
    assert wire.call("CreateContainer") == []


MALFORMED = {
    "frame-too-long": struct.pack(">II", 1, (4 << 20) + 11),
    "text": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "unasked-response": struct.pack(">II", 2, 10) + struct.pack(">IIBB", 0, 3, 2, 0),
    "response-twice": REGISTER_OK + REGISTER_OK,
    "undecodable-response": struct.pack(">II", 2, 11) + struct.pack(">IIBB", 1, 1, 2, 0) + b"\xff",
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_malformed_bytes_close_the_session(
    data: bytes, cut: Callable[[bytes], Iterator[bytes]]
) -> None:
    wire = Wire()
    with pytest.raises(RemoteProtocolError):
        fed(wire.session.receive_data, cut(data))
    assert wire.session.closed
    assert wire.session.receive_data(REGISTER_OK) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"index": "5"}, "must be two digits"),
        ({"index": "5x"}, "must be two digits"),
        ({"index": "٣٣"}, "must be two digits"),
        ({"name": ""}, "must be letters, digits"),
        ({"name": "gpu\n"}, "must be letters, digits"),
        ({"wanted": EventMask(0)}, "cannot be served"),
        ({"wanted": EventMask.VALIDATE_CONTAINER_ADJUSTMENT}, "cannot be served"),
        ({"wanted": EventMask.CREATE_CONTAINER | EventMask.RUN_POD_SANDBOX}, "cannot be served"),
    ],
)
def test_a_registration_that_would_be_refused_is_not_sent(
    arguments: dict[str, str], text: str
) -> None:
    with pytest.raises(LocalProtocolError, match=text):
        Session(**{"name": "gpuslice", "index": "50"} | arguments)  # type: ignore[arg-type]
