"""A runtime as strict as the Go one, and the plugin at the other end of a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

import pytest

from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.nri.answers import Answer, Reply
from nri_plugin.nri.connection import serve
from nri_plugin.policy.refusals import Reason, Refused, refused
from nri_plugin.protocol.session_events import (
    ContainerRequest,
    CreateContainer,
    RemoveContainer,
    Request,
    RuntimeInfo,
    StartContainer,
    StopContainer,
    Synchronize,
    Validate,
)
from tests.nri_plugin.fake_runtime import FakeRuntime, RequestFailed, connected_pair
from tests.nri_plugin.objects import container, pod

_METHODS: Mapping[type[Request], str] = {
    StartContainer: "start",
    StopContainer: "stop",
    RemoveContainer: "remove",
}


class Recorder:
    """A handler that records its calls, and runs the hooks that a test sets."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.state: tuple[Sequence[nri.PodSandbox], Sequence[nri.Container]] | None = None
        self.adjustment: nri.ContainerAdjustment | None = None
        self.hooks: dict[str, Callable[[], Awaitable[object]]] = {}
        self.objection: BaseException | None = None
        """Raised by the validation, and by every other method that answers at once."""
        self.at_once = False

    async def _asked(self, method: str, container_id: str) -> None:
        self.asked.append((method, container_id))
        if method in self.hooks:
            await self.hooks[method]()

    def handle(self, request: Request) -> Answer[Reply]:
        match request:
            case Synchronize():
                self.state = (request.pods, request.containers)
                return self._asked("synchronize", "")
            case CreateContainer(container=container):
                if not self.at_once:
                    return self._create_later(container)
                self._asked_at_once("create", container.id)
                return self._reply()
            case StopContainer(container=container) if self.at_once:
                self._asked_at_once("stop", container.id)
                return None
            case ContainerRequest(container=container):
                return self._asked(_METHODS[type(request)], container.id)
            case Validate(request=validation) if "look" in self.hooks:
                self.asked.append(("validate", validation.container.id))
                return self._looked()
            case Validate(request=validation):
                self._asked_at_once("validate", validation.container.id)
        return None

    async def _create_later(self, container: nri.Container) -> Reply:
        await self._asked("create", container.id)
        return self._reply()

    def _reply(self) -> Reply:
        return self.adjustment and nri.CreateContainerResponse(adjust=self.adjustment)

    async def _looked(self) -> None:
        await self.hooks["look"]()
        if self.objection is not None:
            raise self.objection

    def _asked_at_once(self, method: str, container_id: str) -> None:
        self.asked.append((method, container_id))
        if self.objection is not None:
            raise self.objection


class Rig:
    """A runtime, and the plugin serving a Recorder at the other end of the socket."""

    def __init__(self, runtime: FakeRuntime, theirs: socket.socket) -> None:
        self.runtime = runtime
        self.handler = Recorder()
        self.ready: list[RuntimeInfo] = []
        self.on_ready: Callable[[RuntimeInfo], None] = self.ready.append
        self.leaving = asyncio.Event()
        self.plugin = asyncio.create_task(
            serve(
                theirs,
                self.handler.handle,
                name="gpuslice",
                index="50",
                on_ready=lambda found: self.on_ready(found),
                leaving=self.leaving,
            )
        )

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
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        await asyncio.sleep(0.05)
        raise RuntimeError("too late to matter") from None


def objection(text: str) -> Refused:
    return refused(Reason.FILES_FAILED, problem=text)
