"""Containers' use of each GPU's time: metrics, and a notice of long kernels.

The input is the compute records of regions, which measuring.py reads, and NVML's utilization of
processes. The library writes the records while it checks launches. The tenant can
write them too. Therefore the time between two reads limits an increase. A container's first reading
is only a baseline, because the container may have run before this agent started.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpuslice.contract import names
from gpuslice.contract.grant_file import is_cap
from gpuslice.gpu.account import Use
from gpuslice.gpu.answers import Utilization
from gpuslice.kube.log_lines import Line
from nri_plugin.metrics import Metrics, Series, container_labels
from nri_plugin.policy.ledger import Hold
from nri_plugin.policy.notices import Notice, Notices

_LOG: Final = logging.getLogger(__name__)

_SECOND_NS: Final = 1_000_000_000
_WAITING_THREADS_MAX: Final = 4096
"""Assumed maximum of a container's waiting threads. It limits the time that a reading can add."""
_WINDOWS_S: Final = (1, 10)
_READINGS_MAX: Final = 1 + max(_WINDOWS_S)
"""Number of readings kept per container. There is one reading per second."""
_TEXT: Final = (
    "a kernel runs for more than a second; kernels of more than a second cannot be interrupted;"
    " their excess is deducted from later windows, and other containers of the GPU wait meanwhile;"
    " launch shorter kernels, or give the pod a whole GPU"
)


@dataclass(frozen=True, slots=True)
class Reading:
    """A container's use of each GPU by UUID, as read at `at_ns` (CLOCK_MONOTONIC)."""

    at_ns: int
    gpus: Mapping[str, Use]


class ComputeUse:
    """Computes the metrics of compute from consecutive readings."""

    def __init__(self, metrics: Metrics, notices: Notices) -> None:
        self._long_kernels = metrics.long_kernels
        self._increases = [Series(each) for each in (metrics.throttled, metrics.busy)]
        self._share = Series(metrics.share)
        self._requested = Series(metrics.requested)
        self._policies = Series(metrics.policies)
        self._utilized = Series(metrics.nvml_utilization)
        self._notices = notices
        self._readings: dict[str, deque[Reading]] = {}
        self._reported: set[str] = set()
        self._unsupported: set[str] = set()

    def add(self, holds: Iterable[Hold], readings: Mapping[str, Reading]) -> None:
        """Add readings, by key of the grant's files. Readings that failed are missing."""
        by_key = {hold.key: hold for hold in holds}
        known = (self._readings.keys() | readings.keys()) & by_key.keys()
        self._readings = {
            key: self._readings.get(key, deque(maxlen=_READINGS_MAX)) for key in known
        }
        increases: dict[tuple[str, ...], tuple[float, ...]] = {}
        share, requested, policies = {}, {}, {}
        for key, kept in self._readings.items():
            before = kept[-1] if kept else readings[key]
            now = readings.get(key, before)
            if key in readings:
                kept.append(now)
            for uuid, use in now.gpus.items():
                labels = container_labels(by_key[key].container_key, uuid)
                increases[labels] = increase(before, now, uuid)
                if use.checked and len(kept) > 1:
                    for window_s in _WINDOWS_S:
                        share[*labels, f"{window_s}s"] = share_over(window_s, kept, uuid)
                policies[*labels, use.policy.value] = 1.0
                if is_cap(use.core_percent):
                    requested[labels] = use.core_percent / 100
                if 0 < use.work.unfinished_since_ns < now.at_ns - _SECOND_NS:
                    self._report(by_key[key], uuid)
        for index, series in enumerate(self._increases):
            series.update({labels: each[index] for labels, each in increases.items()})
        self._share.update(share)
        self._requested.update(requested)
        self._policies.update(policies)
        self._reported &= by_key.keys()

    def utilization(
        self, holds: Iterable[Hold], utilized: Utilization, pids: Mapping[str, Collection[int]]
    ) -> None:
        """Update the metric of NVML's utilization. pids: processes by key of the grant's files.
        `utilized` and `pids` are empty if NVML did not answer."""
        ratios = {}
        for key, hold in {hold.key: hold for hold in holds}.items():
            kept = self._readings.get(key)
            for uuid in kept[-1].gpus if kept else ():
                percents = utilized.get(uuid)
                if percents is not None:
                    total = sum(percents.get(pid, 0) for pid in pids.get(key, ()))
                    ratios[container_labels(hold.container_key, uuid)] = min(total / 100, 1.0)
        self._utilized.update(ratios)
        for uuid in {uuid for uuid, percents in utilized.items() if percents is None}:
            if uuid not in self._unsupported:
                self._unsupported.add(uuid)
                _LOG.info(Line("NVML has no utilization of processes", gpu=uuid))

    def _report(self, hold: Hold, uuid: str) -> None:
        """Report a long kernel, at most once per grant."""
        if hold.key in self._reported:
            return
        self._reported.add(hold.key)
        self._long_kernels.inc()
        reason = names.EVENT_LIMIT_NOT_ENFORCEABLE
        text = f"{uuid}, used by {hold.container_key}: {_TEXT}"
        self._notices.add(Notice(hold.pod, hold.key, reason, text, action="Run"))
        fields = hold.pod.log_fields(hold.container_key)
        _LOG.warning(Line(reason, **fields, key=hold.key, gpu=uuid, problem=_TEXT))


def increase(before: Reading, now: Reading, uuid: str) -> tuple[float, float]:
    """Return the seconds, between two readings, in which launches waited (summed over threads), and
    in which the GPU worked."""
    elapsed_ns = now.at_ns - before.at_ns
    if elapsed_ns <= 0 or now.gpus is before.gpus or uuid not in before.gpus:
        return 0.0, 0.0
    old, new = before.gpus[uuid], now.gpus[uuid]
    throttled_ns = new.work.throttled_ns - old.work.throttled_ns
    spent_ns = new.work.spent_ns - old.work.spent_ns
    return (
        min(max(throttled_ns, 0), elapsed_ns * _WAITING_THREADS_MAX) / _SECOND_NS,
        min(max(spent_ns, 0), elapsed_ns) / _SECOND_NS,
    )


def share_over(window_s: int, kept: Sequence[Reading], uuid: str) -> float:
    """Return the part of the last `window_s` seconds in which the GPU worked for the container. If
    no reading is that old, the oldest one starts the period. kept: at least two readings."""
    now = kept[-1]
    if now.gpus is kept[0].gpus:
        return 0.0
    begun_ns = now.at_ns - window_s * _SECOND_NS + _SECOND_NS // 2
    before = next((each for each in reversed(kept) if each.at_ns <= begun_ns), kept[0])
    busy_s = increase(before, now, uuid)[1]
    return busy_s * _SECOND_NS / max(now.at_ns - before.at_ns, 1)
