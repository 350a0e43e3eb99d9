"""Sets the driver's limits of GPU memory on containers' control groups, and keeps them set.

A limit is set on the container's own group: hard is the grant, soft is 0. A soft limit would raise
the ancestors' dmem.min, which the group's removal does not lower. The limits are set before a
program starts, and again every LOOK_S, after each Synchronize, and after NVML was loaded again,
because a reload of the driver loses them. Files are read and written in a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from gpuslice.contract import names
from gpuslice.gpu import cgroups
from gpuslice.kube.log_lines import Line
from nri_plugin.gpu.inventory import Inventory
from nri_plugin.gpu.nvml_queries import LIMITS
from nri_plugin.metrics import Metrics, Series, container_labels
from nri_plugin.policy import memory_limits
from nri_plugin.policy.ledger import Hold
from nri_plugin.policy.memory_limits import Limits, MemoryLimits
from nri_plugin.policy.notices import Notice, Notices
from nri_plugin.policy.refusals import ChildError, Reason, refused
from nri_plugin.settings import Settings
from nri_plugin.threads import Worker

_LOG: Final = logging.getLogger(__name__)

LOOK_S: Final = 30.0
_REST_S: Final = 1.0
"""The least time from a look to one because NVML was loaded. It doubles while NVML fails, because
the look itself may end NVML's process."""
_UNKNOWN_S: Final = 1.0
"""Interval until NVML has reported the driver."""
START_S: Final = 0.6
"""Deadline before a container's start. The container's other checks need time too."""
_NO_GROUP: Final = "its first process is in no control group of its own"


class DriverLimits:
    """holds: the running containers' ledger holds. first_process: returns the /proc directory of a
    container's first process, and raises OSError. unavailable: why the node's driver cannot limit
    containers; "": it can."""

    def __init__(
        self,
        settings: Settings,
        inventory: Inventory,
        metrics: Metrics,
        notices: Notices,
        holds: Callable[[], Collection[Hold]],
        first_process: Callable[[str], Path],
        unavailable: Callable[[], str],
        timeout: Callable[[float], AbstractAsyncContextManager[object]] = asyncio.timeout,
    ) -> None:
        self._timeout = timeout
        self._mode, self._root = settings.memory_limits, settings.cgroup_root
        self._inventory, self._notices = inventory, notices
        self._holds, self._first_process, self._unavailable = holds, first_process, unavailable
        self._restored = metrics.limits_restored
        self._series = Series(metrics.limits_info)
        self._worker = Worker("memory limits")
        self._problems: dict[str, str] = {}
        """Container ID -> why the driver's limit is not in force; "": it is."""
        self._due = asyncio.Event()
        self._failed = self._loaded = False
        """Whether NVML failed at the last look, and was loaded since it began."""
        self._rests = True
        inventory.nvml.on_start = self._was_loaded

    def look_soon(self) -> None:
        self._due.set()

    async def run(self) -> None:
        """Set again what is missing, until cancelled."""
        rest_s = _REST_S
        while True:
            self._due.clear()
            self._rests, self._loaded, self._failed = True, False, False
            await self.look()
            rest_s = min(2 * rest_s, LOOK_S) if self._failed else _REST_S
            await self._wait(rest_s)
            self._rests = False
            left_s = (LOOK_S if self._inventory.driver else _UNKNOWN_S) - rest_s
            if left_s > 0 and not self._loaded:
                await self._wait(left_s)

    async def _wait(self, time_s: float) -> None:
        with suppress(TimeoutError):
            async with self._timeout(time_s):
                await self._due.wait()

    def _was_loaded(self) -> None:
        self._loaded = True
        if not self._rests:
            self._due.set()

    async def look(self) -> None:
        holds = [hold for hold in self._holds() if hold.adjusted]
        if self._mode is not MemoryLimits.LIBRARY:
            problems = await self._ensure(holds, self._inventory.nvml.deadline_s)
            live = {hold.container_id for hold in self._holds()}
            for hold in holds:
                if hold.container_id in problems.keys() & live:
                    self._note(hold, problems[hold.container_id])
        self._show()

    async def starts(self, container_id: str) -> bool:
        """Set the limit of a container whose program does not run yet. Return whether the driver's
        limit is in force. Raises Refused if it must be and is not."""
        hold = next((each for each in self._holds() if each.container_id == container_id), None)
        if self._mode is MemoryLimits.LIBRARY or hold is None:
            self._show()
            return False
        problem = self._unavailable()
        if not problem:
            problem = (await self._ensure([hold], START_S)).get(container_id, _NO_GROUP)
            if self._mode is MemoryLimits.AUTO:
                self._note(hold, problem)
            if problem:
                self.look_soon()
        if problem and self._mode is MemoryLimits.DRIVER:
            raise refused(Reason.DRIVER_LIMIT, problem=problem)
        self._problems[container_id] = problem
        self._show()
        return not problem

    async def _ensure(self, holds: Sequence[Hold], deadline_s: float) -> Mapping[str, str]:
        """Set these containers' limits. Return by container ID why one is not in force, or "". A
        container without a process is left out."""
        if problem := self._unavailable():
            return {hold.container_id: problem for hold in holds}
        indexes = {gpu.uuid: gpu.index for gpu in self._inventory.seen if gpu.index is not None}
        buses = {gpu.uuid: gpu.bus_id for gpu in self._inventory.seen}
        try:
            async with asyncio.timeout(deadline_s):
                find = partial(self._groups, holds, buses)
                found, problems = await self._worker.run(find, deadline_s)
                asked = memory_limits.requests(found, holds, indexes)
                lines = (await self._inventory.nvml.ask(LIMITS, asked)).lines if asked else {}
        except (ChildError, TimeoutError) as error:
            self._failed = True
            text = str(error) or f"NVML did not set it within {deadline_s:g} s"
            return {hold.container_id: text for hold in holds}
        for hold in holds:
            group = found.get(hold.container_id)
            for uuid, part in hold.parts.items() if group else ():
                line = lines.get(indexes.get(uuid, -1))
                text, changed = memory_limits.problem(line, group or "", part.memory_bytes)
                if text:
                    problems.setdefault(hold.container_id, f"{uuid}: {text}")
                elif changed and self._problems.get(hold.container_id) == "":
                    self._restored.inc()
                    _LOG.warning(Line("driver's memory limit set again", **_fields(hold)))
        return {**dict.fromkeys(found, ""), **problems}

    def _groups(
        self, holds: Sequence[Hold], buses: Mapping[str, str]
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Find the control group of each container, and enable the DMEM controller for it. Return
        groups and problems by container ID. Runs in the worker."""
        groups, problems = {}, {}
        for hold in holds:
            try:
                text = (self._first_process(hold.container_id) / "cgroup").read_text()
            except OSError:  # it is being created, or has exited
                continue
            group = cgroups.of_container(text, self._root, hold.container_id)
            if group is None:
                continue
            try:
                cgroups.enable_dmem(self._root, group, [buses.get(uuid, "") for uuid in hold.parts])
                groups[hold.container_id] = str(group)
            except OSError as error:
                problems[hold.container_id] = f"control group: {error}"
        return groups, problems

    def _note(self, hold: Hold, problem: str) -> None:
        """Record a container's state. Report a new problem, unless the whole node lacks limits."""
        known = self._problems.get(hold.container_id)
        self._problems[hold.container_id] = problem
        if not problem or problem == known or problem == self._unavailable():
            return
        _LOG.warning(Line("driver's memory limit not set", **_fields(hold), problem=problem))
        text = (
            f'container "{hold.container}": the driver\'s memory limit is not set, only the'
            f" library's is in force: {problem}"
        )
        self._notices.add(Notice(hold.pod, hold.container, names.EVENT_DRIVER_LIMIT_NOT_SET, text))

    def _show(self) -> None:
        """Update the metric of each container, and forget containers that ended."""
        holds = [hold for hold in self._holds() if hold.adjusted]
        live = {hold.container_id for hold in holds}
        self._problems = {key: text for key, text in self._problems.items() if key in live}
        series: dict[tuple[str, ...], float] = {}
        for hold in holds:
            problem = self._problems.get(hold.container_id, _NO_GROUP)
            in_force = Limits(self._mode, problem).in_force
            labels = (container_labels(hold.container_key, uuid) for uuid in hold.parts)
            series |= {(*each, in_force): 1 for each in labels}
        self._series.update(series)


def _fields(hold: Hold) -> Mapping[str, object]:
    return hold.pod.log_fields(hold.container, hold.container_id)
