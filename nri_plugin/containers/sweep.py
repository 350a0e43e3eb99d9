"""Removes the directories that no container uses, one at a time, between requests.

After a crash there may be a thousand, and the kernel takes milliseconds for each. The worker that
creates containers' files removes them one by one, so that a container waits for at most one.
Runs on the event loop; the users may change between two removals, and are checked before each.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container
from functools import partial
from typing import Final

from gpuslice.kube.log_lines import Line
from nri_plugin.host.files import RunDirectory
from nri_plugin.policy.refusals import FilesError
from nri_plugin.threads import Worker

_LOG: Final = logging.getLogger(__name__)


class Sweeper:
    """users: the keys in use now. worker: the one that also creates directories, in order."""

    def __init__(
        self,
        files: RunDirectory,
        worker: Worker,
        deadline_s: float,
        users: Callable[[], Container[str]],
    ) -> None:
        self._files = files
        self._worker = worker
        self._deadline_s = deadline_s
        self._users = users
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start a new sweep in a separate task; returns at once."""
        self.stop()
        self._task = asyncio.create_task(self._sweep(), name="sweep")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def settled(self) -> None:
        """Wait until the current sweep has ended."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _sweep(self) -> None:
        removed = stay = 0
        try:
            for key in sorted(await self._worker.run(self._files.keys, self._deadline_s)):
                if key not in self._users():
                    gone = await self._remove(key)
                    removed, stay = removed + gone, stay + (not gone)
        except (OSError, TimeoutError) as error:
            _LOG.warning(Line("the run directory cannot be swept", error=repr(error)))
        if removed or stay:
            _LOG.info(Line("unused directories removed", removed=removed, stay=stay))

    async def _remove(self, key: str) -> bool:
        try:
            await self._worker.run(partial(self._files.remove, key), self._deadline_s)
        except (FilesError, TimeoutError) as error:
            _LOG.warning(
                Line("unused directory remains until the next sweep", key=key, error=repr(error))
            )
            return False
        return True
