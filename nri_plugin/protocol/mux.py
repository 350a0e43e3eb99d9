"""Several connections in one socket: `[connection u32][length u32][payload]`, big endian.

NRI always has two: on PLUGIN the runtime calls us, on RUNTIME we call it. There is no handshake and
no flow control. Frame boundaries have no meaning to the reader. The writer must choose them with
care: a Go runtime reads through a buffer of 4096 bytes, and loses its connection (ENOMEM) if a
frame with the start of a ttrpc message is larger; the rest of the message may be one piece. It
queues 256 frames and fails at the next one.
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
"""One ttrpc message of the largest size, the most that any runtime writes at once. NRI 0.12.5 and
later close the connection at a larger one."""

HEADER: Final = struct.Struct(">II")


def frames(connection: int, message: bytes) -> bytes:
    """Return one whole ttrpc message, framed for `connection`."""
    first, rest = message[:FIRST_FRAME_BYTES], message[FIRST_FRAME_BYTES:]
    framed = HEADER.pack(connection, len(first)) + first
    return framed + HEADER.pack(connection, len(rest)) + rest if rest else framed


class Demultiplexer:
    """Splits the socket's bytes into (connection, bytes) as they arrive: no frame is buffered. Data
    of unknown connections is returned too; the caller must drop it."""

    def __init__(self) -> None:
        self._header = b""
        """The beginning of one that is incomplete."""
        self._connection = 0
        self._remaining_bytes = 0

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Take `data`, split anywhere. Raises RemoteProtocolError at a frame over the limit, and at
        every call after it."""
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
