"""Several connections in one socket: `[connection u32][length u32][payload]`, big endian.

NRI has two connections: on PLUGIN the runtime calls us, and on RUNTIME we call the runtime. There
is no handshake and no flow control. Only a writer must care about the size of frames. A Go runtime
loses its connection (ENOMEM) if the first frame of a ttrpc message is larger than its buffer of
4096 bytes. The second frame may have all other bytes of the message. A runtime queues 256 frames,
and fails at the next frame.
"""

from __future__ import annotations

import struct
from typing import Final

from nri_plugin.protocol.errors import RemoteProtocolError

PLUGIN: Final = 1
"""The connection on which the runtime calls the plugin."""
RUNTIME: Final = 2
"""The connection on which the plugin calls the runtime."""

FIRST_FRAME_BYTES: Final = 4096
FRAME_LIMIT_BYTES: Final = (4 << 20) + 10
"""The size of the largest ttrpc message. No runtime writes a larger frame, and NRI 0.12.5 and later
close the connection when they receive one."""

HEADER: Final = struct.Struct(">II")


def frames(connection: int, message: bytes) -> bytes:
    """Return the frames of one whole ttrpc message on `connection`."""
    first, rest = message[:FIRST_FRAME_BYTES], message[FIRST_FRAME_BYTES:]
    framed = HEADER.pack(connection, len(first)) + first
    return framed + HEADER.pack(connection, len(rest)) + rest if rest else framed


class Demultiplexer:
    """Splits the socket's bytes by connection. It returns a frame's bytes as they arrive, without
    waiting for the frame's end. The caller must drop the bytes of unknown connections."""

    def __init__(self) -> None:
        self._header = b""
        """The bytes of an incomplete header."""
        self._connection = 0
        self._remaining_bytes = 0

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Return the pairs of connection and bytes in `data`, which may begin and end anywhere in a
        frame. Raises RemoteProtocolError at a frame over the limit, and in every later call."""
        pieces = []
        if self._header:
            data = self._header + data
            self._header = b""
        at, end = 0, len(data)
        while True:
            if self._remaining_bytes:
                piece = data[at : at + self._remaining_bytes]
                if not piece:
                    break
                at += len(piece)
                self._remaining_bytes -= len(piece)
                pieces.append((self._connection, piece))
            elif end - at < HEADER.size:
                self._header = data[at:]
                break
            else:
                self._connection, length = HEADER.unpack_from(data, at)
                if length > FRAME_LIMIT_BYTES:
                    self._header = data[at : at + HEADER.size]
                    raise RemoteProtocolError(
                        f"a frame of {length} bytes on connection {self._connection},"
                        f" where at most {FRAME_LIMIT_BYTES} are allowed"
                    )
                self._remaining_bytes = length
                at += HEADER.size
        return pieces
