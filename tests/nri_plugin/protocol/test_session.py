"""nri_plugin.protocol.session: recorded dialogues, and messages malformed or out of order."""

from __future__ import annotations

import struct

import pytest
from google.protobuf.message import Message

from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.messages import ttrpc_pb2
from nri_plugin.protocol import mux, nri_versions, session_events
from nri_plugin.protocol import session as session_module
from nri_plugin.protocol.errors import LocalProtocolError, RemoteProtocolError
from nri_plugin.protocol.nri_versions import METHODS
from nri_plugin.protocol.session import Session, State
from nri_plugin.protocol.session_events import SERVED_EVENTS, Code, EventMask
from tests.nri_plugin.objects import container, pod
from tests.nri_plugin.protocol import vectors
from tests.nri_plugin.protocol.vectors import CUTS, DIALOGUES, REGISTER_OK, fed

EMPTY = ttrpc_pb2.Response()


class Wire:
    """A session of the plugin, and methods that act as the runtime at the other end."""

    def __init__(self, wanted: EventMask = SERVED_EVENTS) -> None:
        self.session = Session(name="gpuslice", index="50", wanted=wanted)
        self.session.register()
        self.session.data_to_send()
        self.stream = -1

    def call(
        self,
        method: str,
        message: Message | bytes = b"",
        *,
        timeout_ns: int = 0,
        service: str = nri_versions.PLUGIN_SERVICE,
    ) -> list[session_events.Event]:
        self.stream += 2
        payload = message if isinstance(message, bytes) else message.SerializeToString()
        request = ttrpc_pb2.Request(service=service, method=method, timeout_nano=timeout_ns)
        request.payload = payload
        data = request.SerializeToString()
        header = struct.pack(">IIBB", len(data), self.stream, 1, 0)
        return self.session.receive_data(mux.frames(mux.PLUGIN, header + data))

    def replies(self) -> list[tuple[int, ttrpc_pb2.Response]]:
        """Return the session's replies to the runtime's calls: pairs of stream ID and response."""
        pieces = mux.Demultiplexer().feed(self.session.data_to_send())
        sent = b"".join(piece for connection, piece in pieces if connection == mux.PLUGIN)
        found = []
        while sent:
            length, stream, kind, _ = struct.unpack_from(">IIBB", sent)
            assert kind == 2
            found.append((stream, ttrpc_pb2.Response.FromString(sent[10 : 10 + length])))
            sent = sent[10 + length :]
        return found

    def reply(self) -> ttrpc_pb2.Response:
        ((stream, response),) = self.replies()
        assert stream == self.stream
        return response

    def reach(self, state: State) -> Wire:
        """Send the runtime's usual messages until the session is in this state."""
        if state is not State.UNCONFIGURED:
            self.session.receive_data(REGISTER_OK)
            request = nri.ConfigureRequest(runtime_name="containerd", runtime_version="v2.4.2")
            self.call("Configure", request)
            assert self.reply().status.code == 0
        if state in (State.ADOPTING, State.SERVING):
            self.call("Synchronize")
        if state is State.SERVING:
            assert self.session.respond(self.stream)
            assert self.reply() == EMPTY
        assert self.session.state is state
        return self

    def serve(self) -> Wire:
        return self.reach(State.SERVING)


def test_the_registration_is_the_recorded_one() -> None:
    session = Session(name="gpushare", index="10", nri_version="")
    session.register()
    assert session.data_to_send() == vectors.REGISTER_GPUSHARE
    assert session.data_to_send() == b""
    with pytest.raises(LocalProtocolError, match="registers once"):
        session.register()


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("order", [1, -1], ids=["in-order", "configure-first"])
def test_a_recorded_handshake_in_every_cut(cut: int, order: int) -> None:
    session = Wire().session
    first, second = (REGISTER_OK, vectors.CONTAINERD_CONFIGURE)[::order]
    received = fed(session.receive_data, first + second[:5], cut)
    assert len(received) == 1 and not session.introduced
    rest = second[5:] + vectors.CONTAINERD_SYNCHRONIZE + b"\0\0"
    received += fed(session.receive_data, rest, cut)
    assert session.introduced
    runtime = session_events.RuntimeInfo("containerd", "2.4.2+unknown", "v0.12.3", 2000)
    configured = session_events.Configured(runtime, SERVED_EVENTS)
    introduction = [session_events.Registered(), configured][::order]
    assert received == [*introduction, session_events.Synchronize(3, 1999, (), ())]
    session.respond(3)
    framed = bytes.fromhex("000000010000001300000009000000010200120710a84c1a020801")
    assert session.data_to_send() == framed + vectors.SYNCHRONIZE_REPLY


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("version", DIALOGUES)
def test_a_recorded_lifecycle_in_every_cut(version: str, cut: int) -> None:
    """NRI versions report events by different calls. The session makes the same events of them."""
    session = Wire().session
    received: list[session_events.Event] = []
    for frame in vectors.split_frames(DIALOGUES[version]):
        for event in fed(session.receive_data, frame, cut):
            received.append(event)
            if isinstance(event, session_events.Request):
                assert 0 < event.budget_ms <= 2000
                session.respond(event.request_id)
    assert session.introduced
    # In the recording of 0.12.3 the answer to the registration comes only after Synchronize.
    received.remove(session_events.Registered())
    configured, synchronize, create, validate, *others = received
    assert isinstance(configured, session_events.Configured)
    assert isinstance(synchronize, session_events.Synchronize)
    assert [each.id for each in synchronize.pods] == ["p0"]
    assert [each.id for each in synchronize.containers] == ["c0"]
    assert isinstance(create, session_events.CreateContainer)
    assert (create.pod.uid, list(create.container.env)) == ("u", ["PATH=/bin"])
    assert create.container.mounts[0].options == ["nosuid"]
    assert create.container.linux.devices[0].minor == 3
    assert isinstance(validate, session_events.Validate)
    assert validate.request.adjust.env == [nri.KeyValue(key="X", value="y")]
    owners = validate.request.owners.owners["c-main"].compound[nri.FIELD_ENV].owners
    assert dict(owners) == {"X": "50-gpuslice"}
    about = [e.container.id for e in others if isinstance(e, session_events.ContainerRequest)]
    assert about == ["c-main"] * 3
    assert [type(event) for event in others] == [
        session_events.StartContainer,
        session_events.StopContainer,
        session_events.RemoveContainer,
    ]


@pytest.mark.parametrize(
    ("nri_version", "wanted", "subscribed"),
    [
        ("v0.8.0", SERVED_EVENTS, 0x628),
        ("", SERVED_EVENTS, 0x2628),
        ("v0.12.0", EventMask.CREATE_CONTAINER, 0x8),
    ],
)
def test_only_supported_events_are_subscribed(
    nri_version: str, wanted: EventMask, subscribed: int
) -> None:
    wire = Wire(wanted)
    request = nri.ConfigureRequest(runtime_name="containerd", runtime_version="v2.2.7")
    request.nri_version = nri_version
    (configured,) = wire.call("Configure", request)
    assert isinstance(configured, session_events.Configured)
    assert configured.events == subscribed
    assert configured.runtime.request_timeout_ms == 2000, "where the runtime reports none"
    policy = nri.FailurePolicy(fail_request=True, keep_connected=False)
    assert nri.ConfigureResponse.FromString(wire.reply().payload) == nri.ConfigureResponse(
        events=subscribed, failure_policy=policy
    )


def test_chunks_of_synchronize_are_joined() -> None:
    wire = Wire().reach(State.CONFIGURED)
    for n in range(3):
        chunk = nri.SynchronizeRequest(pods=[pod(n)], containers=[container(n)], more=True)
        assert wire.call("Synchronize", chunk) == []
        reply = nri.SynchronizeResponse.FromString(wire.reply().payload)
        assert reply == nri.SynchronizeResponse(more=True)
        assert wire.session.state is State.COLLECTING
    last = nri.SynchronizeRequest(pods=[pod(3)])
    pods, containers = tuple(map(pod, range(4))), tuple(map(container, range(3)))
    (synchronize,) = wire.call("Synchronize", last, timeout_ns=700_000_000)
    assert synchronize == session_events.Synchronize(wire.stream, 700, pods, containers)
    assert wire.replies() == []
    assert wire.session.state is State.ADOPTING


def test_the_sum_of_the_chunks_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire().reach(State.CONFIGURED)
    big = nri.SynchronizeRequest(pods=[pod(1, {"note": "x" * 600})], more=True)
    monkeypatch.setattr(session_module, "SYNCHRONIZE_LIMIT_BYTES", 2 * big.ByteSize())
    for code in (0, 0, Code.RESOURCE_EXHAUSTED):
        assert wire.call("Synchronize", big) == []
        assert wire.reply().status.code == code


# --- requests and their answers, and messages that are malformed or out of turn


_UNDECIDED = [name for name, method in METHODS.items() if method.event is None]
UNSERVED = [
    *((name, b"") for name in _UNDECIDED if "Container" in name or "PodSandbox" in name),
    *(("StateChange", bytes([8, number])) for number in (0, 1, 2, 3, 5, 7, 9, 12, 13, 15)),
    ("StateChange", b"\x08\xe7\x07"),
]


@pytest.mark.parametrize(("method", "payload"), UNSERVED)
@pytest.mark.parametrize("state", [State.UNCONFIGURED, State.SERVING])
def test_what_we_do_not_serve_is_answered_empty(method: str, payload: bytes, state: State) -> None:
    wire = Wire().reach(state)
    assert wire.call(method, payload) == []
    assert wire.reply() == EMPTY


def test_validation_and_its_two_answers() -> None:
    wire = Wire().serve()
    request = nri.ValidateContainerAdjustmentRequest(pod=pod(1), container=container(2))
    request.owners.owners["c2"].compound[nri.FIELD_ENV].owners["FOO"] = "50-gpuslice"
    (validate,) = wire.call("ValidateContainerAdjustment", request)
    assert validate == session_events.Validate(wire.stream, 2000, request)
    assert wire.session.respond(wire.stream)
    assert wire.reply() == EMPTY
    wire.call("ValidateContainerAdjustment", request)
    wire.session.fail(wire.stream, Code.UNKNOWN, "our mount is gone: \udcff")
    response = wire.reply()
    assert response.status.code == 0
    verdict = nri.ValidateContainerAdjustmentResponse.FromString(response.payload)
    assert (verdict.reject, verdict.reason) == (True, "our mount is gone: ?")


@pytest.mark.parametrize(
    ("state", "method", "payload"),
    [
        (State.UNCONFIGURED, "CreateContainer", b""),
        (State.UNCONFIGURED, "Synchronize", b""),
        (State.UNCONFIGURED, "StateChange", b"\x08\x06"),
        (State.CONFIGURED, "CreateContainer", b""),
        (State.CONFIGURED, "Configure", b""),
        (State.ADOPTING, "StopContainer", b""),
        (State.SERVING, "Synchronize", b""),
        (State.SERVING, "Configure", b""),
    ],
)
def test_out_of_turn_is_an_error_and_the_session_stays(
    state: State, method: str, payload: bytes
) -> None:
    wire = Wire().reach(state)
    assert wire.call(method, payload) == []
    status = wire.reply().status
    assert status.code == Code.FAILED_PRECONDITION
    assert status.message == f"{method} comes out of turn: the session is {state.name.lower()}"
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


@pytest.mark.parametrize("method", [name for name in METHODS if name != "Shutdown"])
def test_an_undecodable_request_is_an_error_and_the_session_stays(method: str) -> None:
    wire = Wire().serve()
    assert wire.call(method, b"\x0a\xff\xff") == []
    status = wire.reply().status
    assert status.code == Code.INVALID_ARGUMENT
    assert "cannot be decoded" in status.message
    assert wire.session.state is State.SERVING


def test_answers_are_given_once_and_of_the_right_kind() -> None:
    wire = Wire().serve()
    session = wire.session
    wire.call("StopContainer")
    with pytest.raises(LocalProtocolError, match="where a StopContainerResponse is due"):
        session.respond(wire.stream, nri.CreateContainerResponse())
    assert session.respond(wire.stream, nri.StopContainerResponse())
    for stream in (wire.stream, 99):
        with pytest.raises(LocalProtocolError, match="answered twice"):
            session.respond(stream)
    with pytest.raises(LocalProtocolError, match="answered twice"):
        session.fail(wire.stream, Code.UNKNOWN, "")


def test_shutdown_is_answered_and_closes() -> None:
    wire = Wire().serve()
    wire.call("CreateContainer")
    open_request = wire.stream
    assert wire.call("Shutdown") == [session_events.ShutDown()]
    assert wire.reply() == EMPTY
    assert wire.session.closed
    with pytest.raises(LocalProtocolError, match="no request waits"):
        wire.session.respond(open_request)
    assert wire.call("CreateContainer") == []


def _reply(length: int, stream: int) -> bytes:
    """Return the frame of a reply to one of the plugin's calls, up to the payload."""
    return struct.pack(">II", 2, 10 + length) + struct.pack(">IIBB", length, stream, 2, 0)


MALFORMED = {
    "frame-too-long": struct.pack(">II", 1, (4 << 20) + 11),
    "text": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "unasked-response": _reply(0, 3),
    "response-twice": REGISTER_OK + REGISTER_OK,
    "undecodable-response": _reply(1, 1) + b"\xff",
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_malformed_bytes_close_the_session(data: bytes, cut: int) -> None:
    session = Wire().session
    with pytest.raises(RemoteProtocolError):
        fed(session.receive_data, data, cut)
    assert session.closed
    assert session.receive_data(REGISTER_OK) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        *(({"index": index}, "must be two digits") for index in ("5", "5x", "٣٣")),
        *(({"name": name}, "must be letters, digits") for name in ("", "gpu\n")),
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
