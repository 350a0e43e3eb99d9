"""An asynchronous client of the lab's API server, for bulk operations. kubectl does the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

from gpuslice.kube import access
from gpuslice.kube.client import Kube

TIMEOUT_S: Final = 60.0
"""The timeout of one request. It is long because a busy machine answers late."""
_T = TypeVar("_T")


@asynccontextmanager
async def connected(kubeconfig: Path) -> AsyncIterator[Kube]:
    path = str(kubeconfig)
    async with Kube(access.load(path), lambda: access.load(path)) as kube:
        yield kube


async def each(what: Iterable[_T], act: Callable[[_T], Awaitable[object]]) -> None:
    """Call `act` for each item, up to 64 at once. After a failure, the remaining calls are
    cancelled and the failures are raised as an ExceptionGroup."""
    left = iter(what)

    async def work() -> None:
        for one in left:
            await act(one)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(64):
            tasks.create_task(work())
