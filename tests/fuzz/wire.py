"""Bytes of a runtime: the mux, ttrpc's two sides, and the whole dialogue of NRI.

Documented exception: RemoteProtocolError for bytes outside the protocol. Invariants: the split of a
stream never matters, a parser buffers no more than its limit, and every request is answered exactly
once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from google.protobuf.message import Message

from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.messages import ttrpc_pb2
from nri_plugin.protocol import mux, nri_versions, session_events, ttrpc
from nri_plugin.protocol.errors import RemoteProtocolError
from nri_plugin.protocol.session import Session, State
from nri_plugin.protocol.session_events import Code
from tests.fuzz.choices import Choices, cut

_METHODS: Final = (*nri_versions.METHODS, "Other")
_MANY: Final = 40


def demultiplexer(data: bytes) -> None:
    choices = Choices(data)
    message, connection = choices.blob() * (1 + choices.byte()), choices.whole(4)
    alone = mux.Demultiplexer().feed(mux.frames(connection, message))
    assert b"".join(piece for _, piece in alone) == message
    stream = choices.rest()
    at_once = _received(mux.Demultiplexer(), [stream])
    in_pieces = _received(mux.Demultiplexer(), cut(stream, Choices(data)))
    # The same byte breaks it, so all before it was received, in one piece or in several.
    assert at_once is None or in_pieces is None or at_once == in_pieces
    assert (at_once is None) == (in_pieces is None)


def _received(
    parser: mux.Demultiplexer, pieces: Iterator[bytes] | Sequence[bytes]
) -> list[tuple[int, bytes]] | None:
    """Bytes by run of one connection; None if the stream broke."""
    received: list[tuple[int, bytes]] = []
    try:
        for piece in pieces:
            for connection, part in parser.feed(piece):
                if received and received[-1][0] == connection:
                    received[-1] = (connection, received[-1][1] + part)
                else:
                    received.append((connection, part))
            assert len(parser._header) < mux.HEADER.size
    except RemoteProtocolError:
        with contextlib.suppress(RemoteProtocolError):
            parser.feed(b"")
            raise AssertionError("a broken stream was read on") from None
        return None
    return received


def calls(data: bytes) -> None:
    """ttrpc, the server and the client, on the same bytes."""
    choices = Choices(data)
    server, client = ttrpc.Server(), ttrpc.Client()
    mine = [client.call("s", "m", b"", 0) for _ in range(choices.byte() % 8)]
    kinds, stream = choices.byte(), b""
    if kinds & 1:
        while choices.left:
            stream += _ttrpc_message(choices)
    else:
        stream = choices.rest()
    open_calls: list[int] = []
    answered = 0
    for piece in cut(stream, Choices(data)):
        try:
            received = server.receive_data(piece)
        except RemoteProtocolError as error:
            raise AssertionError(f"a server's stream cannot break: {error}") from error
        open_calls += [call.stream for call in received]
        if kinds & 2:
            for number in open_calls:
                server.reply(number, b"x")
            answered += len(open_calls)
            open_calls.clear()
        assert len(server._pending) <= ttrpc.MAX_PENDING
        assert len(server._parser._buffer) <= ttrpc.DATA_LIMIT_BYTES
    for number in open_calls:
        server.fail(number, Code.UNKNOWN, "no")
    sent = ttrpc.FrameParser().feed(b"".join(server.messages_to_send()))
    assert {frame.type for frame in sent} <= {ttrpc.RESPONSE}
    assert len(sent) >= answered + len(open_calls)
    replies: list[ttrpc.Reply] = []
    with contextlib.suppress(RemoteProtocolError):
        for piece in cut(stream, Choices(data)):
            replies += client.receive_data(piece)
    streams = [reply.stream for reply in replies]
    assert len(set(streams)) == len(streams) and set(streams) <= set(mine)


def _ttrpc_message(choices: Choices) -> bytes:
    body = choices.blob()
    if choices.byte() % 4:
        body = ttrpc_pb2.Request(
            service="s", method="m", payload=body, timeout_nano=choices.byte()
        ).SerializeToString()
    kind = choices.one_of((ttrpc.REQUEST, ttrpc.RESPONSE, choices.byte()))
    length = len(body) if choices.byte() % 8 else choices.whole(3)
    return ttrpc.HEADER.pack(length, choices.byte(), kind, choices.byte()) + body


def dialogue(data: bytes) -> None:
    """A runtime's dialogue: steps of the real one, in any order, with any bytes changed."""
    choices = Choices(data)
    session = Session(name="gpuslice", index="50")
    session.register()
    talk = _Talk(session, choices)
    for _ in range(_MANY):
        if not choices.left or session.closed:
            break
        try:
            talk.step()
        except RemoteProtocolError:
            assert session.closed
    talk.finish()


class _Talk:
    """Both ends of one session: sends as the choices say, and records the answers."""

    def __init__(self, session: Session, choices: Choices) -> None:
        self._session = session
        self._choices = choices
        self._stream = 1
        self._asked: list[session_events.Request] = []
        self._replies = ttrpc.FrameParser()
        self._trunk = mux.Demultiplexer()
        self._answered: set[int] = set()
        self._distinct = True

    def step(self) -> None:
        choices = self._choices
        raw = _STEPS[choices.byte() % len(_STEPS)](self)
        if choices.byte() % 4 == 0:
            raw = _mutated(raw, choices)
            self._distinct = False
        for piece in cut(raw, choices):
            for event in self._session.receive_data(piece):
                if isinstance(event, session_events.Request):
                    assert event.budget_ms >= 0
                    self._asked.append(event)
            self._settle(choices.byte() % 4)
        self._read_answers()

    def finish(self) -> None:
        if not self._session.closed:
            self._settle(1)
        self._read_answers()
        self._session.receive_eof()
        assert self._session.state is State.CLOSED
        assert self._session.receive_data(b"anything") == []

    def call(self, method: str, message: bytes) -> bytes:
        request = ttrpc_pb2.Request(
            service=nri_versions.PLUGIN_SERVICE if self._choices.byte() % 16 else "other",
            method=method,
            payload=message,
            timeout_nano=self._choices.whole(4) - (1 << 16),
        ).SerializeToString()
        self._stream += 2
        return mux.frames(mux.PLUGIN, ttrpc.encode(self._stream - 2, ttrpc.REQUEST, request))

    def registered(self) -> bytes:
        status = None
        if self._choices.byte() % 8 == 7:
            status = ttrpc_pb2.Status(code=self._choices.byte(), message=self._choices.blob().hex())
        reply = ttrpc_pb2.Response(status=status, payload=b"").SerializeToString()
        return mux.frames(mux.RUNTIME, ttrpc.encode(1, ttrpc.RESPONSE, reply))

    def configure(self) -> bytes:
        message = nri.ConfigureRequest(
            runtime_name=self._choices.one_of(("containerd", "cri-o", "other")),
            runtime_version=self._choices.one_of(("v2.4.2", "1.7.30", "", "v9999999999.1")),
            nri_version=self._choices.one_of(("", "v0.12.3", "0.8", "x")),
            request_timeout=self._choices.whole(4) - (1 << 16),
        )
        return self.call("Configure", message.SerializeToString())

    def synchronize(self) -> bytes:
        count = self._choices.byte() % 4
        message = nri.SynchronizeRequest(
            pods=[_pod(self._choices) for _ in range(count)],
            containers=[_container(self._choices) for _ in range(count)],
            more=self._choices.byte() % 2 == 1,
        )
        return self.call("Synchronize", message.SerializeToString())

    def event(self) -> bytes:
        method = self._choices.one_of(_METHODS)
        request = (
            nri_versions.METHODS[method].request if method in nri_versions.METHODS else nri.Empty
        )
        return self.call(method, self._filled(request).SerializeToString())

    def state_change(self) -> bytes:
        message = nri.StateChangeEvent(
            event=nri.Event.ValueType(self._choices.byte() % 20),
            pod=_pod(self._choices),
            container=_container(self._choices),
        )
        return self.call("StateChange", message.SerializeToString())

    def undecodable(self) -> bytes:
        return self.call(self._choices.one_of(_METHODS), self._choices.blob())

    def noise(self) -> bytes:
        self._distinct = False
        return self._choices.blob()

    def _filled(self, request: type[Message]) -> Message:
        message = request()
        fields = {field.name for field in request.DESCRIPTOR.fields}
        for name, make in (("pod", _pod), ("container", _container)):
            if name in fields:
                getattr(message, name).CopyFrom(make(self._choices))
        return message

    def _settle(self, how: int) -> None:
        """Answer open requests: not yet, successfully, with an error, or with a reply that is too
        large."""
        if how == 0 or self._session.closed:
            return
        for request in self._asked:
            if self._session.closed:
                break
            if how == 2:
                self._session.fail(request.request_id, Code.UNKNOWN, self._choices.text())
            elif how == 3 and isinstance(request, session_events.CreateContainer):
                adjust = nri.ContainerAdjustment(env=[nri.KeyValue(key="K", value="v" * 5000)])
                self._session.respond(
                    request.request_id, nri.CreateContainerResponse(adjust=adjust)
                )
            else:
                self._session.respond(request.request_id)
        self._asked.clear()

    def _read_answers(self) -> None:
        for connection, piece in self._trunk.feed(self._session.data_to_send()):
            if connection != mux.PLUGIN:
                continue
            for frame in self._replies.feed(piece):
                assert frame.type == ttrpc.RESPONSE and frame.data is not None
                ttrpc_pb2.Response.FromString(frame.data)
                if self._distinct:
                    assert frame.stream not in self._answered, "answered twice"
                self._answered.add(frame.stream)


_STEPS: Final[Sequence[Callable[[_Talk], bytes]]] = (
    _Talk.configure,
    _Talk.synchronize,
    _Talk.event,
    _Talk.registered,
    _Talk.state_change,
    _Talk.undecodable,
    _Talk.noise,
    _Talk.event,
)


def _mutated(raw: bytes, choices: Choices) -> bytes:
    changed = bytearray(raw)
    for _ in range(1 + choices.byte() % 4):
        place = choices.whole(2) % (len(changed) + 1)
        match choices.byte() % 3:
            case 0:
                changed[place : place + 1] = bytes([choices.byte()])
            case 1:
                del changed[place : place + choices.byte()]
            case _:
                changed[place:place] = choices.blob()
    return bytes(changed)


def _pod(choices: Choices) -> nri.PodSandbox:
    return nri.PodSandbox(
        id=choices.blob().hex(), name="pod", uid="uid", annotations={"a": choices.blob().hex()}
    )


def _container(choices: Choices) -> nri.Container:
    return nri.Container(id=choices.blob().hex(), name="main", env=["A=1"])
