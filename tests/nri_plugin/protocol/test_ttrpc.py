"""nri_plugin.protocol.mux and ttrpc: limits of sizes, and one violation of each rule."""

from __future__ import annotations

import struct

import pytest

from nri_plugin.messages import ttrpc_pb2
from nri_plugin.protocol import mux, ttrpc
from nri_plugin.protocol.errors import LocalProtocolError, RemoteProtocolError
from nri_plugin.protocol.session_events import Code
from tests.nri_plugin.protocol import vectors

MUX = 8
LIMIT = 4 << 20


# --- the mux: output is split as the Go reader needs it; input is read however split


def joined(pieces: list[tuple[int, bytes]]) -> dict[int, bytes]:
    streams: dict[int, bytes] = {}
    for connection, piece in pieces:
        streams[connection] = streams.get(connection, b"") + piece
    return streams


@pytest.mark.parametrize("rest", [0, 1, LIMIT + 10 - 4096])
def test_a_message_is_written_as_its_first_4096_bytes_and_the_rest(rest: int) -> None:
    message = bytes(range(256)) * 16 + bytes(rest)
    framed = mux.frames(mux.PLUGIN, message)
    expected = [4096, rest] if rest else [4096]
    assert [len(frame) - MUX for frame in vectors.split_frames(framed)] == expected
    assert joined(mux.Demultiplexer().feed(framed)) == {mux.PLUGIN: message}


def test_connections_do_not_mix_and_empty_frames_mean_nothing() -> None:
    frames = [(1, b"ab"), (2, b"x"), (7, b"?"), (1, b""), (2, b"y"), (1, b"c")]
    data = b"".join(struct.pack(">II", number, len(part)) + part for number, part in frames)
    assert joined(mux.Demultiplexer().feed(data)) == {1: b"abc", 2: b"xy", 7: b"?"}


def test_a_frame_up_to_the_largest_is_handed_on_as_it_comes() -> None:
    demultiplexer = mux.Demultiplexer()
    assert demultiplexer.feed(struct.pack(">II", 1, LIMIT + 10) + b"first") == [(1, b"first")]
    assert demultiplexer.feed(b"second") == [(1, b"second")]
    with pytest.raises(RemoteProtocolError, match="4194315 bytes on connection 1"):
        mux.Demultiplexer().feed(struct.pack(">II", 1, LIMIT + 11))


# --- ttrpc


def header(length: int, stream: int, kind: int) -> bytes:
    return struct.pack(">IIBB", length, stream, kind, 0)


def request(stream: int, payload: bytes = b"") -> bytes:
    data = ttrpc_pb2.Request(service="S", method="M", payload=payload).SerializeToString()
    return header(len(data), stream, 1) + data


def statuses(server: ttrpc.Server) -> list[tuple[int, int, str]]:
    """Return the errors that the server has to send: each stream, code and text."""
    found = []
    for message in server.messages_to_send():
        length, stream, kind, flags = struct.unpack_from(">IIBB", message)
        assert (length, kind, flags) == (len(message) - 10, 2, 0)
        status = ttrpc_pb2.Response.FromString(message[10:]).status
        found.append((stream, status.code, status.message))
    return found


def test_a_call_is_answered_once() -> None:
    server = ttrpc.Server()
    server.receive_data(request(1) + request(3))
    assert server.reply(3, b"") and server.reply(1, b"")
    with pytest.raises(LocalProtocolError, match="answered twice"):
        server.reply(1, b"")
    with pytest.raises(LocalProtocolError, match="answered twice"):
        server.fail(3, Code.UNKNOWN, "")


BAD, LONG = Code.INVALID_ARGUMENT, header(LIMIT + 1, 7, 1) + bytes(LIMIT + 1)
RULES = {
    "even-stream": (request(2), 2, BAD, "must be odd"),
    "even-unknown-type": (header(0, 4, 9), 4, BAD, "must be odd"),
    "stream-zero": (request(0), 0, BAD, "must be odd"),
    "reused": (request(5), 5, BAD, "may not be used again"),
    "lower": (request(3), 3, BAD, "may not be used again"),
    "not-a-request": (header(2, 7, 1) + b"\xff\xff", 7, BAD, "cannot be decoded"),
    "too-long": (LONG, 7, Code.RESOURCE_EXHAUSTED, "more than 4194304 bytes"),
}


@pytest.mark.parametrize(("data", "stream", "code", "text"), RULES.values(), ids=RULES)
def test_a_broken_rule_is_answered_and_the_connection_continues(
    data: bytes, stream: int, code: int, text: str
) -> None:
    server = ttrpc.Server()
    (first,) = server.receive_data(request(5))
    assert server.receive_data(data) == []
    ((answered, sent_code, sent_text),) = statuses(server)
    assert (answered, sent_code) == (stream, code)
    assert text in sent_text
    assert [call.stream for call in server.receive_data(request(9))] == [9]
    assert server.reply(first.stream, b"")


@pytest.mark.parametrize("kind", [0, 2, 3, 4, 255])
def test_unknown_types_and_flags_are_passed_over(kind: int) -> None:
    server, client = ttrpc.Server(), ttrpc.Client()
    assert server.receive_data(header(2, 1, kind) + b"??") == []
    if kind != 2:
        assert client.receive_data(header(2, 1, kind) + b"??") == []
    assert server.messages_to_send() == []
    data = request(1)
    assert len(server.receive_data(data[:9] + b"\x07" + data[10:])) == 1


def test_the_largest_request_passes_and_one_of_four_gigabytes_is_not_kept() -> None:
    overhead = len(request(1, bytes(LIMIT - 100))) - 10 - (LIMIT - 100)
    (call,) = ttrpc.Server().receive_data(request(1, bytes(LIMIT - overhead)))
    assert len(call.payload) == LIMIT - overhead
    server = ttrpc.Server()
    server.receive_data(header(0xFFFFFFFF, 1, 1))
    for _ in range(64):
        server.receive_data(bytes(1 << 16))
        assert len(server._parser._buffer) == 0


def test_too_many_open_calls_are_refused_and_not_kept() -> None:
    server = ttrpc.Server()
    streams = range(1, 150, 2)
    calls = [call for n in streams for call in server.receive_data(request(n))]
    assert len(calls) == 64
    assert {code for _, code, _ in statuses(server)} == {Code.RESOURCE_EXHAUSTED}
    server.reply(1, b"")
    assert len(server.receive_data(request(9999))) == 1


def test_an_errors_text_is_cut_and_always_utf_8() -> None:
    assert ttrpc.sendable("\udcff path") == "? path"
    long = ttrpc.sendable("é" * (16 << 10))
    assert long == "é" * (8 << 10)
    assert ttrpc.sendable("x" + long + "é") == "x" + long[:-1]


def test_a_call_over_the_limit_is_not_sent_and_streams_end_before_they_repeat() -> None:
    client = ttrpc.Client()
    with pytest.raises(LocalProtocolError, match="at most 4194304"):
        client.call("S", "M", bytes(LIMIT), 0)
    assert client.messages_to_send() == []
    assert [client.call("S", "M", b"", 0) for _ in range(2)] == [1, 3]
    client._next_stream = 0xFFFFFFFF
    assert client.call("S", "M", b"", 0) == 0xFFFFFFFF
    with pytest.raises(LocalProtocolError, match="no stream numbers left"):
        client.call("S", "M", b"", 0)
