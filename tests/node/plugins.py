"""A second NRI plugin beside the agent, which makes one change to every container."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator

from lab.node.lab import Lab
from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.nri import connection
from nri_plugin.protocol import session_events
from nri_plugin.protocol.session_events import EventMask

Meddling = Callable[[nri.Container, nri.ContainerAdjustment], None]


@contextlib.contextmanager
def plugin(lab: Lab, meddle: Meddling, name: str = "other", index: str = "60") -> Iterator[None]:
    """Runs the plugin during the block."""

    def meddler(request: session_events.Request) -> nri.CreateContainerResponse | None:
        if not isinstance(request, session_events.CreateContainer):
            return None
        reply = nri.CreateContainerResponse()
        meddle(request.container, reply.adjust)
        return reply

    ready, loop, leaving = threading.Event(), asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        await connection.serve(
            await connection.connected(lab.namespace.outside(lab.containerd.paths.nri_socket)),
            meddler,
            name=name,
            index=index,
            wanted_events=EventMask.CREATE_CONTAINER,
            on_ready=lambda _: ready.set(),
            leaving=leaving,
        )

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(30)
        yield
    finally:
        loop.call_soon_threadsafe(leaving.set)
        thread.join()
        loop.close()
