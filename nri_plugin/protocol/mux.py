"""Several connections in one socket: `[connection u32][length u32][payload]`, big endian.

NRI always has two connections: on PLUGIN the runtime calls us, on RUNTIME we call it. There is no
handshake and no flow control. Frame boundaries have no meaning: the reader joins the frames of each
connection into one stream.

The writer must choose them with care. A Go runtime reads through a buffer of 4096 bytes, and loses
its connection (ENOMEM) if a frame with the start of a ttrpc message is larger; the rest of the
message may be one piece. So a message is written as its first 4096 bytes and the rest. Many small
pieces are not possible either: the reader queues 256 frames and fails at the next one.
"""

from __future__ import annotations

import struct
from typing import Final

from nri_plugin.protocol.buffer import Parser, Steps
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
    parts = (message[:FIRST_FRAME_BYTES], message[FIRST_FRAME_BYTES:])
    return b"".join(HEADER.pack(connection, len(part)) + part for part in parts if part)


class Demultiplexer(Parser[tuple[int, bytes]]):
    """Yields (connection, bytes), the bytes as soon as they arrive: no frame is buffered.

    Data of unknown connections is returned too; the caller must drop it.
    """

    def _grammar(self) -> Steps[None]:
        while True:
            header = yield from self._exactly(HEADER.size, HEADER.size)
            connection, remaining = HEADER.unpack(header)
            if remaining > FRAME_LIMIT_BYTES:
                raise RemoteProtocolError(
                    f"a frame of {remaining} bytes on connection {connection}, "
                    f"where at most {FRAME_LIMIT_BYTES} are allowed"
                )
            while remaining:
                piece = yield from self._at_most(remaining)
                remaining -= len(piece)
                self._emit((connection, piece))
