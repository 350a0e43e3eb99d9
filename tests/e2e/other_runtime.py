"""Another container runtime than the node's, of which the agent sees NRI's socket."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.nri_plugin.fake_runtime import FakeRuntime, RequestFailed
from tests.nri_plugin.fake_trunk import Dropped


@contextmanager
def listening(socket: Path, name: str, version: str) -> Iterator[None]:
    """It names itself when a plugin registers. socket: its directory is made, and removed."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        runtime = FakeRuntime(reader, writer, runtime=(name, version), nri_version=(0, 8, 0))
        with suppress(Dropped, RequestFailed):
            await runtime.handshake()
        await runtime.close()

    async def run() -> None:
        async with await asyncio.start_unix_server(serve, socket):
            began.set()
            await asyncio.to_thread(leaving.wait)

    began, leaving = threading.Event(), threading.Event()
    thread = threading.Thread(target=asyncio.run, args=(run(),))
    socket.parent.mkdir()
    thread.start()
    try:
        assert began.wait(10)
        yield
    finally:
        leaving.set()
        thread.join()
        socket.unlink(missing_ok=True)
        socket.parent.rmdir()
