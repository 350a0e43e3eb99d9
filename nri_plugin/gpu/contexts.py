"""GPU memory that a CUDA context takes by itself, for grants: measured once per GPU, in a child.

The child process creates a context and measures it (gpu/context_size.py). A known size is kept. A
failure is logged once and retried later; meanwhile grants contain CONTEXT_BYTES_ASSUMED. No
container waits for a measurement, or fails because of it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from gpu import answers
from kube.log_lines import Line
from nri_plugin.child import Child
from nri_plugin.policy.refusals import ChildError

_LOG: Final = logging.getLogger(__name__)


class Contexts:
    """The known sizes. Each unknown GPU is measured at most once per `min_interval_s`.

    deadline_s: of one measurement; the agent waits for it at its start. now: a monotonic clock in
    seconds.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        deadline_s: float = 10.0,
        min_interval_s: float = 30.0,
        now: Callable[[], float] = time.monotonic,
        command: Sequence[str] = (sys.executable, "-m", "gpu.context_size"),
    ) -> None:
        self._environment = environment
        self._deadline_s = deadline_s
        self._min_interval_s = min_interval_s
        self._now = now
        self._command = command
        self.sizes: dict[str, int] = {}
        """The known sizes in bytes, by GPU."""
        self._children: dict[str, Child] = {}
        self._tried_at: dict[str, float] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._logged: dict[str, str] = {}

    def measure(self, uuids: Iterable[str]) -> None:
        """Start to measure those of these GPUs that are unknown; returns at once."""
        self._tasks = {uuid: task for uuid, task in self._tasks.items() if not task.done()}
        for uuid in uuids:
            tried_at = self._tried_at.get(uuid)
            due = tried_at is None or self._now() - tried_at >= self._min_interval_s
            if uuid in self.sizes or not due or uuid in self._tasks:
                continue
            self._tried_at[uuid] = self._now()
            self._tasks[uuid] = asyncio.create_task(self._measure(uuid), name=f"context of {uuid}")

    async def settled(self) -> None:
        """Wait until the running measurements have ended, each within its deadline."""
        await asyncio.gather(*self._under_way(), return_exceptions=True)

    async def close(self) -> None:
        """Cancel the running measurements."""
        for task in self._under_way():
            task.cancel()
        await self.settled()

    def _under_way(self) -> Sequence[asyncio.Task[None]]:
        return [task for task in self._tasks.values() if not task.done()]

    async def _measure(self, uuid: str) -> None:
        try:
            size_bytes = answers.context_bytes(await self._child(uuid).request())
        except (ChildError, answers.UnknownSizeError) as error:
            if self._logged.get(uuid) != str(error):
                self._logged[uuid] = str(error)
                _LOG.warning(Line("context size unknown", gpu=uuid, error=error))
            return
        self.sizes[uuid] = size_bytes
        _LOG.info(Line("context size", gpu=uuid, bytes=size_bytes))

    def _child(self, uuid: str) -> Child:
        if uuid not in self._children:
            environment = {**self._environment, "CUDA_VISIBLE_DEVICES": uuid}
            self._children[uuid] = Child(
                (*self._command, uuid),
                environment,
                deadline_s=self._deadline_s,
                subject="a context",
            )
        return self._children[uuid]
