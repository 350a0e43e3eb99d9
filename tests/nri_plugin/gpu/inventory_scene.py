"""NVML's process with answers from a file, and with deadlines that a test lets expire."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

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

_T = TypeVar("_T")


class Deadlines:
    """Deadlines of NVML's queries that expire only when a test says so, even on a busy machine."""

    def __init__(self, nvml: NvmlProcess) -> None:
        self._nvml = nvml
        self._open: list[asyncio.Timeout] = []
        nvml.timeout = self._begin

    async def after(
        self, query: Coroutine[Any, Any, _T], *heard: int, listed: bool = False, after_s: float = 0
    ) -> _T:
        """Let the query's deadline expire once these GPUs have answered, and return the result.
        listed: wait also until NVML has listed the GPUs. after_s: seconds by which the clock of
        `nvml` advances before the deadline expires."""
        asked = asyncio.create_task(query)
        await until_async(lambda: self._has_heard({*heard}, listed))
        assert not asked.done()
        if after_s:
            assert isinstance(self._nvml.now, Clock)
            self._nvml.now.seconds += after_s
        for timeout in self._open:
            timeout.reschedule(asyncio.get_running_loop().time())
        return await asked

    def _has_heard(self, gpus: set[int], listed: bool) -> bool:
        running = self._nvml._running
        return running is not None and any(
            gpus <= each.lines.keys() and bool(each.head or not listed)
            for each in running.requests.values()
        )

    @asynccontextmanager
    async def _begin(self, _seconds: float) -> AsyncIterator[None]:
        async with asyncio.timeout(None) as timeout:
            self._open.append(timeout)
            try:
                yield
            finally:
                self._open.remove(timeout)


class Scene:
    def __init__(self, path: Path, record: Record | None) -> None:
        self.path, self.answers = path, path / "answers"
        self.clock = Clock()
        command, clock = (*fake_nvml.PROGRAM, str(self.answers)), self.clock
        self.inventory = Inventory(
            os.environ, deadline_s=60, min_interval_s=5, now=clock, command=command, record=record
        )
        self.nvml = self.inventory.nvml
        self.deadlines = Deadlines(self.nvml)

    def give(self, *gpus: dict[str, Any], **more: object) -> None:
        self.answers.write_text(json.dumps({"gpus": gpus, **more}))

    async def ask(self, *gpus: dict[str, Any], **more: object) -> Sequence[Gpu]:
        """Query after the interval, with these answers or the previous ones if none are given.
        Return the healthy GPUs."""
        if gpus or more:
            self.give(*gpus, **more)
        self.clock.seconds += 5
        await self.inventory.refresh()
        return [*self.inventory.gpus]

    async def late(self, *heard: int, after_s: float = 0) -> Sequence[Gpu]:
        """Query. The deadline expires once GPUs `heard` have answered. Return the healthy GPUs."""
        self.clock.seconds += 5
        await self.deadlines.after(self.inventory.refresh(), *heard, after_s=after_s)
        return [*self.inventory.gpus]

    async def caught_up(self) -> None:
        """Query, and wait until no GPU's answer is overdue."""
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
