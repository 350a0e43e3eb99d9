"""The NRI side of a runtime that calls itself CRI-O: `crio -m tests.platforms.crio SOCKET`.

CRI-O itself does not run in the lab. The agent and the doctor see only the name of the process at
the socket, and the name in the session.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

from tests.nri_plugin.fake_runtime import FakeRuntime, RequestFailed
from tests.nri_plugin.fake_trunk import Dropped

RUNTIME = ("cri-o", "1.34.1")


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    runtime = FakeRuntime(reader, writer, runtime=RUNTIME)
    with contextlib.suppress(Dropped, RequestFailed, ConnectionError, EOFError):
        await runtime.handshake()
        await asyncio.sleep(3600)
    await runtime.close()


async def main(path: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    server = await asyncio.start_unix_server(_serve, path)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
