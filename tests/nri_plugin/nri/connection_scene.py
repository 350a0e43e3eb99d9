"""A runtime as strict as the Go one, and the plugin at the other end of a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any

import pytest

from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.nri.answers import Answer, Reply
from nri_plugin.nri.connection import serve
from nri_plugin.policy.refusals import Reason, Refused, refused
from nri_plugin.protocol import session_events
from nri_plugin.protocol.session_events import Request, RuntimeInfo
from tests.nri_plugin.fake_runtime import FakeRuntime, RequestFailed, connected_pair
from tests.nri_plugin.objects import container, pod

_METHODS: Mapping[type[Request], str] = {
    session_events.Synchronize: "synchronize",
    session_events.CreateContainer: "create",
    session_events.StartContainer: "start",
    session_events.StopContainer: "stop",
    session_events.RemoveContainer: "remove",
    session_events.Validate: "validate",
}


class Recorder:
    """A handler that records its calls, and runs the hooks that a test sets."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        """Method, and the container's ID."""
        self.adjustment: nri.ContainerAdjustment | None = None
        self.hooks: dict[str, Callable[[], Awaitable[object]]] = {}
        self.objection: BaseException | None = None
        """Raised by the validation, and by every other method that answers at once."""
        self.at_once = False

    def handle(self, request: Request) -> Answer[Reply]:
        method = _METHODS[type(request)]
        about = request.request if isinstance(request, session_events.Validate) else request
        self.asked.append((method, about.container.id if hasattr(about, "container") else ""))
        if method in self.hooks or not (self.at_once or method == "validate"):
            return self._later(method)
        return self._result(method, self.objection)

    async def _later(self, method: str) -> Reply:
        if method in self.hooks:
            await self.hooks[method]()
        return self._result(method, self.objection if method == "validate" else None)

    def _result(self, method: str, objection: BaseException | None) -> Reply:
        if objection is not None:
            raise objection
        if method != "create" or self.adjustment is None:
            return None
        return nri.CreateContainerResponse(adjust=self.adjustment)


class Rig:
    """A runtime, and the plugin serving a Recorder at the other end of the socket."""

    def __init__(self, runtime: FakeRuntime, theirs: socket.socket) -> None:
        self.runtime = runtime
        self.handler = Recorder()
        self.ready: list[RuntimeInfo] = []
        self.on_ready: Callable[[RuntimeInfo], None] = self.ready.append
        self.leaving = asyncio.Event()
        serving = serve(
            theirs,
            self.handler.handle,
            name="gpuslice",
            index="50",
            on_ready=lambda found: self.on_ready(found),
            leaving=self.leaving,
        )
        self.plugin = asyncio.create_task(serving)

    async def configure(self) -> None:
        """The handshake up to Synchronize."""
        self.runtime.accept_registration(await self.runtime.receive_registration())
        await self.runtime.configure()

    async def create(self, number: int = 0) -> nri.CreateContainerResponse | None:
        return await self.runtime.create(pod(number), container(number))

    async def fails(
        self, match: str, operation: Coroutine[Any, Any, None] | None = None
    ) -> RequestFailed:
        """A creation, or another operation, fails with this error, and the plugin stays."""
        with pytest.raises(RequestFailed, match=match) as failed:
            await (operation or self.create())
        assert self.runtime.dropped is None
        return failed.value


@contextlib.asynccontextmanager
async def rig(**runtime: Any) -> AsyncIterator[Rig]:
    ours, theirs = await connected_pair()
    made = Rig(FakeRuntime(*ours, **runtime), theirs)
    try:
        yield made
    finally:
        await made.runtime.close()
        await asyncio.gather(made.plugin, return_exceptions=True)


@contextlib.asynccontextmanager
async def session(**options: Any) -> AsyncIterator[Rig]:
    """A rig whose plugin is registered and synchronized."""
    async with rig(**options) as r:
        await r.runtime.handshake()
        yield r


def raiser(error: BaseException) -> Callable[[], Awaitable[None]]:
    async def hook() -> None:
        raise error

    return hook


async def forever() -> None:
    await asyncio.Event().wait()


async def deaf() -> None:
    """A handler that delays its own cancellation."""
    try:
        await forever()
    except asyncio.CancelledError:
        await asyncio.sleep(0.05)
        raise RuntimeError("too late to matter") from None


def objection(text: str) -> Refused:
    return refused(Reason.FILES_FAILED, problem=text)
