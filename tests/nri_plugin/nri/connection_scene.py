"""A runtime as strict as the Go one, and the plugin at the other end of a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any, TypeAlias

import pytest

from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.nri.answers import Answer, Reply
from nri_plugin.nri.connection import serve
from nri_plugin.policy.refusals import Reason, Refused, refused
from nri_plugin.protocol import session_events
from nri_plugin.protocol.session_events import Request, RuntimeInfo
from tests.nri_plugin.fake_runtime import FakeRuntime, RequestFailed, connected_pair
from tests.nri_plugin.objects import container, pod

Hook: TypeAlias = Callable[[], Answer[Reply]]
_ADJUSTMENT = nri.ContainerAdjustment(env=[nri.KeyValue(key="A", value="1")])
ADJUSTED = nri.CreateContainerResponse(adjust=_ADJUSTMENT)


def of_size(size: int) -> nri.CreateContainerResponse:
    adjustment = nri.ContainerAdjustment(annotations={"size": "x" * size})
    return nri.CreateContainerResponse(adjust=adjustment)


def _given(result: Reply | BaseException) -> Reply:
    if isinstance(result, BaseException):
        raise result
    return result


def at_once(result: Reply | BaseException = None) -> Hook:
    """Return a hook that returns this reply, or raises this error."""
    return partial(_given, result)


def later(result: Reply | BaseException = None) -> Hook:
    """Return a hook that replies or raises in a task of its own."""

    async def work() -> Reply:
        return _given(result)

    return work


class Rig:
    """A runtime, and the plugin at the other end of the socket. asked: method and container ID of
    each request that the handler got. hooks: the handler's answer by method; to other methods it
    gives an empty answer in a task of its own."""

    def __init__(self, runtime: FakeRuntime, theirs: socket.socket) -> None:
        self.runtime = runtime
        self.asked: list[tuple[str, str]] = []
        self.hooks: dict[str, Hook] = {}
        self.ready: list[RuntimeInfo] = []
        self.on_ready: Callable[[RuntimeInfo], None] = self.ready.append
        self.leaving = asyncio.Event()
        serving = serve(
            theirs,
            self._handle,
            name="gpuslice",
            index="50",
            on_ready=lambda found: self.on_ready(found),
            leaving=self.leaving,
        )
        self.plugin = asyncio.create_task(serving)

    def _handle(self, request: Request) -> Answer[Reply]:
        method = type(request).__name__
        about = request.request if isinstance(request, session_events.Validate) else request
        self.asked.append((method, about.container.id if hasattr(about, "container") else ""))
        return self.hooks.get(method, later())()

    async def configure(self) -> None:
        self.runtime.accept_registration(await self.runtime.receive_registration())
        await self.runtime.configure()

    async def create(self, number: int = 0) -> nri.CreateContainerResponse | None:
        return await self.runtime.create(pod(number), container(number))

    async def fails(
        self, match: str, operation: Coroutine[Any, Any, None] | None = None
    ) -> RequestFailed:
        """Expect that the operation (by default a creation) fails with a text that matches, and
        that the plugin stays connected."""
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
    async with rig(**options) as r:
        await r.runtime.handshake()
        yield r


async def forever() -> None:
    await asyncio.Event().wait()


async def deaf() -> None:
    """Wait until cancelled. Then continue for 50 ms, and fail with another error."""
    try:
        await forever()
    except asyncio.CancelledError:
        await asyncio.sleep(0.05)
        raise RuntimeError("too late to matter") from None


def objection(text: str) -> Refused:
    return refused(Reason.FILES_FAILED, problem=text)
