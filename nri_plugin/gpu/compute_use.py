"""What containers do with their share of each GPU's time: metrics, and a notice of long kernels.

Input: the compute records of regions, read once a second by measuring.py. The library writes them
while it checks launches, that is, where a GPU is shared or a share is forced. The tenant can write
them too: a difference counts only as far as the time between two reads allows it, so that no tenant
can distort a metric of the node for longer than it runs.

A container's first reading is its baseline, because it may have run before this agent started.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from contract import names
from contract.region_file import Compute
from kube.log_lines import Line
from nri_plugin.metrics import Metrics
from nri_plugin.policy.ledger import Hold
from nri_plugin.policy.notices import Notice, Notices

_LOG: Final = logging.getLogger(__name__)

_SECOND_NS: Final = 1_000_000_000
_WAITING_THREADS_MOST: Final = names.MAX_SLOTS
"""Of a container: bounds the waiting time, a sum over threads, that one reading can add."""
_TEXT: Final = (
    "a kernel runs for more than a second; kernels of more than a second cannot be interrupted;"
    " their excess is deducted from later turns, and other containers of the GPU wait meanwhile;"
    " launch shorter kernels, or give the pod a whole GPU"
)


@dataclass(frozen=True, slots=True)
class Reading:
    """A container's work by GPU UUID, as read at `at_ns` (CLOCK_MONOTONIC)."""

    at_ns: int
    work: Mapping[str, Compute]


class ComputeUse:
    """The metrics of compute, from consecutive readings."""

    def __init__(self, metrics: Metrics, notices: Notices) -> None:
        self._metrics = metrics
        self._notices = notices
        self._last: dict[str, Reading] = {}
        self._reported: set[str] = set()

    def add(self, holds: Iterable[Hold], readings: Mapping[str, Reading]) -> None:
        """readings: by key of the grant's files; one that could not be read is missing."""
        by_key = {hold.key: hold for hold in holds}
        busy: dict[str, float] = defaultdict(float)
        for key, now in readings.items():
            last = self._last.get(key, now)
            for uuid, work in now.work.items():
                throttled_s, ratio = use_between(last, now, uuid)
                self._metrics.throttled.labels(uuid).inc(throttled_s)
                busy[uuid] += ratio
                if key in by_key and _is_long(work, now.at_ns):
                    self._report(by_key[key], uuid)
        self._metrics.busy.clear()
        for uuid, ratio in busy.items():
            self._metrics.busy.labels(uuid).set(min(ratio, 1.0))
        self._last = {key: each for key, each in self._last.items() if key in by_key}
        self._last |= readings
        self._reported &= by_key.keys()

    def _report(self, hold: Hold, uuid: str) -> None:
        """Once per container; once for all containers that share a grant, and thereby a region."""
        if hold.key in self._reported:
            return
        self._reported.add(hold.key)
        self._metrics.long_kernels.inc()
        reason = names.EVENT_LIMIT_NOT_ENFORCEABLE
        text = f"{uuid}, used by {hold.container_key}: {_TEXT}"
        self._notices.add(Notice(hold.pod, hold.key, reason, text, action="Run"))
        _LOG.warning(
            Line(
                reason,
                **hold.pod.log_fields,
                container=hold.container_key,
                key=hold.key,
                gpu=uuid,
                problem=_TEXT,
            )
        )


def use_between(last: Reading, now: Reading, uuid: str) -> tuple[float, float]:
    """Return the seconds that launches waited between two readings, and the busy part of that time.
    Work counts when it finishes."""
    elapsed_ns = now.at_ns - last.at_ns
    if elapsed_ns <= 0 or uuid not in last.work:
        return 0.0, 0.0
    before, after = last.work[uuid], now.work[uuid]
    throttled_ns = after.throttled_ns - before.throttled_ns
    busy_ns = after.busy_ns - before.busy_ns
    most_ns = elapsed_ns * _WAITING_THREADS_MOST
    return (
        min(max(throttled_ns, 0), most_ns) / _SECOND_NS,
        min(max(busy_ns, 0), elapsed_ns) / elapsed_ns,
    )


def _is_long(work: Compute, now_ns: int) -> bool:
    return 0 < work.unfinished_since_ns < now_ns - _SECOND_NS
