"""The mux below NRI, on the runtime's side, as strict as the Go one.

- The trunk queues 256 frames per connection, and breaks at the next frame.
- Each connection is read through a buffer of 4096 bytes. A frame larger than the read that is
  requested breaks it (ENOMEM), so the first frame of a large message must be small.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct

PLUGIN, RUNTIME = 1, 2
QUEUE_FRAMES = 256
BUFIO_BYTES = 4096
MESSAGE_BYTES = 4 << 20


class Dropped(Exception):
    """The runtime has closed the plugin's connection, for the given reason."""


class Trunk:
    """The mux of pkg/net/multiplex, which Go reads through a bufio.Reader."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._queues: dict[int, asyncio.Queue[bytes | None]]
        self._queues = {connection: asyncio.Queue() for connection in (PLUGIN, RUNTIME)}
        self._buffered = {PLUGIN: b"", RUNTIME: b""}
        self.why_broken = ""
        self._pump = asyncio.create_task(self._read_frames())

    async def _read_frames(self) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                header = await self._reader.readexactly(8)
                connection, length = struct.unpack(">II", header)
                payload = await self._reader.readexactly(length)
                queue = self._queues.get(connection)
                if queue is None:
                    continue
                if queue.qsize() == QUEUE_FRAMES:
                    self.break_off("the queue of frames overflowed")
                    break
                queue.put_nowait(payload)
        for queue in self._queues.values():
            queue.put_nowait(None)

    async def _conn_read(self, connection: int, capacity: int) -> bytes:
        frame = await self._queues[connection].get()
        if frame is None:
            self._queues[connection].put_nowait(None)
            raise Dropped(self.why_broken or "the plugin closed the connection")
        if len(frame) > capacity:
            self.break_off(f"ENOMEM: a frame of {len(frame)} bytes into {capacity}")
            raise Dropped(self.why_broken)
        return frame

    async def read_full(self, connection: int, count: int) -> bytes:
        """Read as Go's io.ReadFull does from a bufio.Reader of BUFIO_BYTES."""
        taken = b""
        while len(taken) < count:
            wanted = count - len(taken)
            if not self._buffered[connection]:
                if wanted >= BUFIO_BYTES:
                    taken += await self._conn_read(connection, wanted)
                    continue
                self._buffered[connection] = await self._conn_read(connection, BUFIO_BYTES)
            taken += self._buffered[connection][:wanted]
            self._buffered[connection] = self._buffered[connection][wanted:]
        return taken

    def write(self, connection: int, message: bytes) -> None:
        """Write header and payload separately, and split the message where Go's bufio splits it."""
        for part in (message[:BUFIO_BYTES], message[BUFIO_BYTES:]):
            if part:
                self._writer.write(struct.pack(">II", connection, len(part)))
                self._writer.write(part)

    def write_raw(self, data: bytes) -> None:
        """Write bytes without the mux, in order to violate the protocol."""
        self._writer.write(data)

    def stop_reading(self) -> None:
        """Stop reading, so that the plugin's writes fill the socket."""
        self._pump.cancel()

    def break_off(self, why: str) -> None:
        if not self.why_broken:
            self.why_broken = why
        self._writer.close()

    async def close(self) -> None:
        self._pump.cancel()
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
