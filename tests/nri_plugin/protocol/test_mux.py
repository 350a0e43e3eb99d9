"""nri_plugin.protocol.mux: output is split as the Go reader needs it; input is read however
split."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import pytest

from nri_plugin.protocol import mux
from nri_plugin.protocol.errors import RemoteProtocolError
from tests.nri_plugin.protocol.vectors import CUTS, RECORDED, fed


def joined(pieces: list[tuple[int, bytes]]) -> dict[int, bytes]:
    streams: dict[int, bytes] = {}
    for connection, piece in pieces:
        streams[connection] = streams.get(connection, b"") + piece
    return streams


def frame_sizes(framed: bytes) -> list[int]:
    sizes = []
    while framed:
        _, size = struct.unpack_from(">II", framed)
        sizes.append(size)
        framed = framed[8 + size :]
    return sizes


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (10, [10]),
        (4095, [4095]),
        (4096, [4096]),
        (4097, [4096, 1]),
        (5000, [4096, 904]),
        (3 << 20, [4096, (3 << 20) - 4096]),
        ((4 << 20) + 10, [4096, (4 << 20) + 10 - 4096]),
    ],
)
def test_a_message_is_written_as_its_first_4096_bytes_and_the_rest(
    size: int, expected: list[int]
) -> None:
    message = bytes(range(256)) * (size // 256) + bytes(size % 256)
    framed = mux.frames(mux.PLUGIN, message)
    assert frame_sizes(framed) == expected
    assert joined(mux.Demultiplexer().feed(framed)) == {mux.PLUGIN: message}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("data", RECORDED.values(), ids=RECORDED)
def test_recorded_frames_in_every_cut(data: bytes, cut: Callable[[bytes], Iterator[bytes]]) -> None:
    connection = data[3]
    assert joined(fed(mux.Demultiplexer().feed, cut(data))) == {connection: data[8:]}
    trailing = mux.Demultiplexer()
    assert joined(fed(trailing.feed, cut(data + b"\x00\x00\x00\x02\x00"))) == {connection: data[8:]}
    assert joined(trailing.feed(b"\x00\x00\x01!")) == {mux.RUNTIME: b"!"}


def test_connections_do_not_mix_and_empty_frames_mean_nothing() -> None:
    data = b"".join(
        struct.pack(">II", connection, len(part)) + part
        for connection, part in [(1, b"ab"), (2, b"x"), (7, b"?"), (1, b""), (2, b"y"), (1, b"c")]
    )
    assert joined(mux.Demultiplexer().feed(data)) == {1: b"abc", 2: b"xy", 7: b"?"}


def test_a_frame_is_handed_on_as_it_comes() -> None:
    demultiplexer = mux.Demultiplexer()
    assert demultiplexer.feed(struct.pack(">II", 1, 1 << 20) + b"first") == [(1, b"first")]
    assert demultiplexer.feed(b"second") == [(1, b"second")]
    assert demultiplexer._header == b""


def test_the_largest_frame_passes_and_one_more_byte_does_not() -> None:
    assert mux.Demultiplexer().feed(struct.pack(">II", 1, (4 << 20) + 10)) == []
    with pytest.raises(RemoteProtocolError, match="4194315 bytes on connection 1"):
        mux.Demultiplexer().feed(struct.pack(">II", 1, (4 << 20) + 11))
