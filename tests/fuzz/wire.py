"""Targets that parse a runtime's bytes: the mux, both sides of ttrpc, and a whole NRI session.

The documented exception is RemoteProtocolError for bytes outside the protocol. Invariants: the cuts
of a stream do not change the result. A parser's buffer has a limit. Every request is answered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Final

from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.messages import ttrpc_pb2
from nri_plugin.protocol import mux, session_events, ttrpc
from nri_plugin.protocol.errors import RemoteProtocolError
from nri_plugin.protocol.session import Session, State
from nri_plugin.protocol.session_events import Code
from tests.fuzz.choices import Choices, cut
from tests.nri_plugin.protocol import vectors


def demultiplexer(data: bytes) -> None:
    choices = Choices(data)
    message, connection = choices.blob() * (1 + choices.byte()), choices.whole(4)
    alone = mux.Demultiplexer().feed(mux.frames(connection, message))
    assert b"".join(piece for _, piece in alone) == message
    stream = choices.rest()
    # The result is the same whether the stream arrives whole or in pieces.
    assert _received([stream]) == _received(cut(stream, Choices(data)))


def _received(pieces: Iterable[bytes]) -> list[tuple[int, bytes]] | None:
    """Return pairs (connection, its consecutive bytes), or None if the stream was invalid."""
    parser = mux.Demultiplexer()
    received: list[tuple[int, bytes]] = []
    try:
        for piece in pieces:
            for connection, part in parser.feed(piece):
                if received and received[-1][0] == connection:
                    part = received.pop()[1] + part
                received.append((connection, part))
            assert len(parser._header) < mux.HEADER.size
    except RemoteProtocolError:
        with contextlib.suppress(RemoteProtocolError):
            parser.feed(b"")
            raise AssertionError("a broken stream was read on") from None
        return None
    return received


def calls(data: bytes) -> None:
    """Give the same bytes to ttrpc's server and client."""
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
        # The server raises for no input.
        open_calls += [call.stream for call in server.receive_data(piece)]
        while kinds & 2 and open_calls:
            server.reply(open_calls.pop(0), b"x")
            answered += 1
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
    """Replay a runtime's recorded dialogue with some messages replaced and some bytes changed."""
    choices = Choices(data)
    session = Session(name="gpuslice", index="50")
    session.register()
    asked: list[session_events.Request] = []
    with contextlib.suppress(RemoteProtocolError):
        for message in choices.one_of(_DIALOGUES):
            if session.closed:
                break
            if choices.byte() % 8 == 7:
                message = choices.one_of(choices.one_of(_DIALOGUES))
            if choices.byte() % 8 == 7:
                message = _mutated(message, choices)
            for piece in cut(message, choices):
                events = session.receive_data(piece)
                asked += [e for e in events if isinstance(e, session_events.Request)]
            assert all(request.budget_ms >= 0 for request in asked)
            _settle(session, asked, choices)
    _read_answers(session)
    session.receive_eof()
    assert session.state is State.CLOSED
    assert session.receive_data(b"anything") == []


def _messages(stream: bytes) -> Sequence[bytes]:
    """Return the messages of the stream, each in a frame of its own."""
    return [mux.frames(number, part) for number, part in mux.Demultiplexer().feed(stream)]


_DIALOGUES: Final = tuple(map(_messages, vectors.DIALOGUES.values()))


def _settle(session: Session, asked: list[session_events.Request], choices: Choices) -> None:
    """Leave the open requests unanswered, or answer each with success, an error, or a reply that is
    too large."""
    how = choices.byte() % 4
    if how == 0:
        return
    for request in asked:
        if session.closed:
            break
        if how == 2:
            session.fail(request.request_id, Code.UNKNOWN, choices.text())
        elif how == 3 and isinstance(request, session_events.CreateContainer):
            adjust = nri.ContainerAdjustment(env=[nri.KeyValue(key="K", value="v" * 5000)])
            session.respond(request.request_id, nri.CreateContainerResponse(adjust=adjust))
        else:
            session.respond(request.request_id)
    asked.clear()


def _read_answers(session: Session) -> None:
    replies, trunk = ttrpc.FrameParser(), mux.Demultiplexer()
    for connection, piece in trunk.feed(session.data_to_send()):
        if connection == mux.PLUGIN:
            for frame in replies.feed(piece):
                assert frame.type == ttrpc.RESPONSE and frame.data is not None
                ttrpc_pb2.Response.FromString(frame.data)


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
