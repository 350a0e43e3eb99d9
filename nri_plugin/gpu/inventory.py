"""The GPUs of this node, as the child nvml.py describes them, each under its own deadline.

A GPU that does not answer is unhealthy, and the others stay in use. The last known state applies,
also after a restart of the agent (record.py), while NVML as a whole does not answer, or while a GPU
has not given its first answer to a new child. Unknown GPUs are not offered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gpuslice.kube.log_lines import Line
from nri_plugin.gpu.nvml_process import COMMAND, DEADLINE_S, FIRST_S, Answers, NvmlProcess
from nri_plugin.gpu.nvml_queries import BOARD, GPUS, LINKS
from nri_plugin.gpu.record import Record
from nri_plugin.policy.model import Gpu
from nri_plugin.policy.refusals import ChildError

_LOG: Final = logging.getLogger(__name__)

_REST: Final = 20
"""Minimum interval between background queries, as a multiple of the last query's duration. Without
persistence mode each query wakes the GPUs."""

_RECOVERY_ACTIONS: Final[Mapping[int, str]] = {
    1: "reset the GPU",
    2: "reboot the node",
    3: "end the programs that use it together with other GPUs (drain P2P)",
    4: "end its programs and reset the GPU (drain and reset)",
    5: "recover the IMEX domain",
    6: "reset the GPU's bus",
    7: "reboot the system",
}
"""Recovery actions by their number in nvmlDeviceGpuRecoveryAction_t. 0 means none."""
_LOST: Final = frozenset({1, 2, 6, 7})
"""Recovery actions for which running programs cannot continue. The others drain the GPU first."""

_XIDS: Final[Mapping[int, str]] = {
    48: "double-bit ECC error",
    62: "internal micro-controller halt",
    64: "row remapping or page retirement failed",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    95: "uncontained memory error",
    119: "GSP RPC timeout",
    120: "GSP error",
    140: "unrecovered ECC error",
    143: "GPU initialization error",
}
"""XID errors after which a GPU needs a reset, from NVIDIA's catalog. Programs cause most of the
omitted ones. Also omitted: 63 reports a remapped row, 94 an error that ended one program, 154 a
change of the recovery action, which `_condition` reads directly."""


def pace_s(took_s: float, shortest_s: float, longest_s: float) -> float:
    """Return the interval at which queries take at most a twentieth of the time, within bounds."""
    return min(longest_s, max(shortest_s, _REST * took_s))


class Inventory:
    """The cached GPUs. They are queried again on demand, at most once per `min_interval_s`.
    deadline_s, first_s, command: as in NvmlProcess. now: a monotonic clock in seconds."""

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        deadline_s: float = DEADLINE_S,
        first_s: float = FIRST_S,
        min_interval_s: float = 5.0,
        now: Callable[[], float] = time.monotonic,
        command: Sequence[str] = COMMAND,
        record: Record | None = None,
    ) -> None:
        self.nvml = NvmlProcess(
            environment,
            deadline_s=deadline_s,
            first_s=first_s,
            pause_s=min_interval_s,
            now=now,
            command=command,
        )
        self.record = record or Record()
        self._min_interval_s = min_interval_s
        self._now = now
        self.seen: Sequence[Gpu] = tuple(self.record.gpus)
        """All known GPUs, including failed ones."""
        self._by_index = {gpu.index: gpu for gpu in self.seen if gpu.index is not None}
        """The last known state of each GPU, by NVML's index."""
        self.unnamed: Sequence[str] = ()
        """Problems of the GPUs whose UUIDs are not known."""
        self.driver = ""
        """The driver's version; "" until the first query has succeeded."""
        self.has_limits = False
        """Whether the driver limits the memory of control groups."""
        self._queried_at: float | None = None
        self.took_s = 0.0
        """Duration of the last query, until its answer or failure."""
        self._refreshing: asyncio.Task[None] | None = None
        self.problem: str | None = "NVML has not reported the GPUs yet"
        """Why the last query failed; None if it succeeded."""

    @property
    def gpus(self) -> Sequence[Gpu]:
        """Return the known GPUs that have not failed."""
        return tuple(gpu for gpu in self.seen if not gpu.problem)

    async def refresh(self, wait_s: float | None = None) -> None:
        """Query again unless a query started within `min_interval_s`, and wait for the result. A
        failure is logged, and the known GPUs stay as they are. wait_s: maximum wait if any GPUs
        are known. The query then continues for later callers."""
        self.query_if_older(self._min_interval_s)
        if self._refreshing is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s if self.gpus else None):
                    await asyncio.shield(self._refreshing)

    def with_problems(self, problems: Mapping[str, str]) -> Sequence[Gpu]:
        """Return all known GPUs. problems: by UUID, for GPUs without another problem."""
        return [
            replace(gpu, problem=gpu.problem or problems.get(gpu.uuid, "")) for gpu in self.seen
        ]

    def query_if_older(self, max_age_s: float) -> None:
        """Start a query unless one started within `max_age_s`. Returns at once."""
        due = self._queried_at is None or self._now() - self._queried_at >= max_age_s
        if due and (self._refreshing is None or self._refreshing.done()):
            self._queried_at = self._now()
            self._refreshing = asyncio.create_task(self._refresh(), name="inventory")

    async def close(self) -> None:
        """Cancel a running query, and end NVML's process."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._refreshing
        await self.nvml.close()

    async def _refresh(self) -> None:
        began_s = self._now()
        try:
            answers = await self.nvml.ask(GPUS)
            links = await self._links(answers)
            self._take(answers, links)
        except ChildError as error:
            level = logging.DEBUG if str(error) == self.problem else logging.ERROR
            self.problem = str(error)
            _LOG.log(level, Line("GPU inventory failed", error=error, gpus=len(self.gpus)))
        finally:
            self.took_s = self._now() - began_s

    async def _links(self, answers: Answers) -> Sequence[str]:
        """Return each GPU's NVLink group, by index. While a GPU does not answer, return the last
        known groups, because the query LINKS needs all GPUs."""
        links = answers.head.get("links")
        if links is None and not answers.late and not answers.starting:
            links = (await self.nvml.ask(LINKS)).lines.get(BOARD, {}).get("links")
        if links is not None:
            return [str(link) for link in links]
        known = range(answers.head["count"])
        return [self._by_index[i].link if i in self._by_index else "" for i in known]

    def _take(self, answers: Answers, links: Sequence[str]) -> None:
        """Update the GPUs by NVML's answers. Raises ChildError for unreadable answers."""
        gpus: dict[int, Gpu] = {}
        conditions: dict[str, int | None] = {}
        xids = [*answers.head.get("xids", ())]
        failed: dict[int, str] = {}
        try:
            for index, line in sorted(answers.lines.items()):
                xids += line.get("xids", ())
                if "gpu" not in line:
                    failed[index] = str(line["error"])
                    continue
                described: dict[str, Any] = {**line["gpu"], "link": links[index]}
                conditions[described["uuid"]] = described.pop("recovery", None)
                gpus[index] = Gpu(**described)
            self._note(xids)
            driver = str(answers.head.get("driver", ""))
            has_limits = bool(answers.head.get("limits"))
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise ChildError(f"unreadable answer: {error!r}") from error
        seen = {i: self._judged(gpu, conditions[gpu.uuid]) for i, gpu in gpus.items()}
        unnamed = []
        answered = {gpu.uuid for gpu in gpus.values()}
        for index, why in {**failed, **answers.late, **answers.starting}.items():
            last = self._by_index.get(index)
            if last is None or last.uuid in answered:
                unnamed.append(f"GPU {index}: {why}")
            else:
                seen[index] = last if index in answers.starting else replace(last, problem=why)
        self._by_index |= seen
        self.driver, self.has_limits = driver, has_limits
        self._show(tuple(gpu for _, gpu in sorted(seen.items())), unnamed)

    def _note(self, xids: Sequence[Any]) -> None:
        """Record the first serious XID error of each GPU."""
        new = {str(uuid): int(xid) for uuid, xid in reversed(xids) if xid in _XIDS}
        self.record.keep(xids={**new, **self.record.xids})

    def _judged(self, gpu: Gpu, recovery: int | None) -> Gpu:
        problem = gpu.problem or _condition(recovery, self.record.xids.get(gpu.uuid))
        return replace(gpu, problem=problem, lost=recovery in _LOST)

    def _show(self, seen: Sequence[Gpu], unnamed: Sequence[str]) -> None:
        new = self.problem is not None or (seen, unnamed) != (self.seen, self.unnamed)
        self.problem, self.seen, self.unnamed = None, seen, unnamed
        self.record.keep(gpus=seen)
        uuids = ",".join(gpu.uuid for gpu in self.gpus)
        level = logging.INFO if new else logging.DEBUG
        text = "GPU inventory changed" if new else "GPU inventory read"
        _LOG.log(level, Line(text, gpus=len(self.gpus), uuids=uuids))
        for gpu in seen if new else ():
            if gpu.problem:
                _LOG.error(Line("GPU unhealthy", uuid=gpu.uuid, problem=gpu.problem))
        for problem in unnamed if new else ():
            _LOG.error(Line("GPU unhealthy", problem=problem))


def _condition(recovery: int | None, xid: int | None) -> str:
    """Return why a GPU that answers must not be used; "" if no reason is known.

    recovery: the action that the GPU needs now, as the driver reports it; None before release 570,
    which does not report actions. With None, an XID error counts until the driver is loaded again.
    The driver reports an XID once, and does not report that the GPU works again.
    """
    if recovery is not None:
        action = _RECOVERY_ACTIONS.get(recovery, f"recovery action {recovery}")
        return f"the driver reports that it needs recovery: {action}" if recovery else ""
    if xid is None or xid not in _XIDS:
        return ""
    return f"the driver reported XID {xid} ({_XIDS[xid]})"
