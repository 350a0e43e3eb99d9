"""NVML's process as a test writes it: a file has its answers, and the test ends its deadlines."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from nri_plugin.gpu.inventory import Inventory
from nri_plugin.gpu.nvml_process import NvmlProcess
from nri_plugin.gpu.record import Record
from nri_plugin.policy.model import Gpu
from tests.nri_plugin import fake_nvml
from tests.support import Clock, until_async

ONE = {"uuid": "GPU-1", "minor": 0, "memory_bytes": 5}
TWO = {"uuid": "GPU-2", "minor": 1, "memory_bytes": 6}
SILENT = {**TWO, "silent": True}
GPU_1 = Gpu("GPU-1", 0, 5, index=0)
GPU_2 = Gpu("GPU-2", 1, 6, index=1)


class Deadlines:
    """Deadlines of NVML's queries that end when a test ends them, on a machine of any load."""

    def __init__(self, nvml: NvmlProcess) -> None:
        self._nvml = nvml
        self._open: list[asyncio.Timeout] = []
        nvml.timeout = self._begin

    def expire(self) -> None:
        """Let the deadlines of the queries under way expire."""
        for timeout in self._open:
            timeout.reschedule(asyncio.get_running_loop().time())

    def heard(self, *gpus: int) -> bool:
        """Whether each of the GPUs has answered the query under way."""
        running = self._nvml._running
        return running is not None and any(
            {*gpus} <= request.lines.keys() for request in running.requests.values()
        )

    def listed(self) -> bool:
        """Whether NVML has listed the GPUs for the query under way."""
        running = self._nvml._running
        return running is not None and any(each.head for each in running.requests.values())

    @asynccontextmanager
    async def _begin(self, _seconds: float) -> AsyncIterator[None]:
        async with asyncio.timeout(None) as timeout:
            self._open.append(timeout)
            try:
                yield
            finally:
                self._open.remove(timeout)


class Scene:
    """An inventory, and the file with the answers of its process."""

    def __init__(self, path: Path, record: Record | None) -> None:
        self._path = path / "answers"
        self.clock = Clock()
        self.inventory = Inventory(
            os.environ,
            deadline_s=60.0,
            min_interval_s=5.0,
            now=self.clock,
            command=(*fake_nvml.PROGRAM, str(self._path)),
            record=record,
        )
        self.nvml = self.inventory.nvml
        self.deadlines = Deadlines(self.nvml)

    def give(self, *gpus: dict[str, Any], **more: object) -> None:
        self._path.write_text(json.dumps({"gpus": gpus, **more}))

    async def ask(self, *gpus: dict[str, Any], **more: object) -> Sequence[Gpu]:
        """Query when the interval has passed, with these answers or the last; the healthy GPUs."""
        if gpus or more:
            self.give(*gpus, **more)
        self.clock.seconds += 5
        await self.inventory.refresh()
        return [*self.inventory.gpus]

    async def late(self, *heard: int, after_s: float = 0) -> Sequence[Gpu]:
        """Query until the deadline, when these GPUs have answered; the healthy GPUs."""
        self.clock.seconds += 5
        looking = asyncio.create_task(self.inventory.refresh())
        await until_async(lambda: self.nvml._running and self.nvml._running.requests)
        await until_async(lambda: self.deadlines.heard(*heard))
        assert not looking.done()
        self.clock.seconds += after_s
        self.deadlines.expire()
        await looking
        return [*self.inventory.gpus]

    async def caught_up(self) -> None:
        """Query until no answer is late any more."""
        await self.ask()
        await until_async(lambda: not self.nvml._running.late)  # type: ignore[union-attr]


@asynccontextmanager
async def scene(
    path: Path, *gpus: dict[str, Any], record: Record | None = None, **more: object
) -> AsyncIterator[Scene]:
    made = Scene(path, record)
    made.give(*gpus, **more)
    try:
        yield made
    finally:
        await made.inventory.close()
