"""Deadlines of NVML's queries that end when a test ends them, on a machine of any load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nri_plugin.gpu.nvml_process import NvmlProcess


class Deadlines:
    def __init__(self, nvml: NvmlProcess) -> None:
        self._nvml = nvml
        self._open: list[asyncio.Timeout] = []
        nvml._timeout = self._begin

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
