"""Containers' use of GPU memory: metrics of each container and of each GPU.

The input is what measuring.py reads: charges and refusals of regions, limits and overheads of
grants, and NVML's figures. The tenant can write a region. Therefore the charge counts up to the
limit, and the time between two samples limits an increase of refusals. A container's first sample
is only a baseline, because the container may have run before this agent started.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gpuslice.gpu.account import Memory
from nri_plugin.metrics import Metrics, Series, container_labels
from nri_plugin.policy.ledger import Hold
from nri_plugin.policy.model import Gpu

_REFUSALS_MAX: Final = 100_000_000
"""Assumed maximum of a container's refused allocations between two samples."""

Overheads = Mapping[str, Mapping[str, int | None]]
"""Key of a grant's files -> GPU UUID -> overhead in bytes, or None if NVML has no value. A key's
GPUs are missing if its files cannot be read."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """A sample of one container. violations: as Measured has them."""

    gpus: Mapping[str, Memory]
    violations: Mapping[str, int]


_NONE: Final = _Reading({}, {})


class MemoryUse:
    def __init__(self, metrics: Metrics) -> None:
        self._used = Series(metrics.container_used)
        self._limit = Series(metrics.container_limit)
        self._overhead = Series(metrics.container_overhead)
        self._refused = Series(metrics.refused_allocations)
        self._violations = Series(metrics.limit_violations)
        self._gpu_total = Series(metrics.memory_total)
        self._gpu_granted = Series(metrics.memory_granted)
        self._gpu_used = Series(metrics.memory_used)
        self._gpu_overhead = Series(metrics.overhead)
        self._unhandled = Series(metrics.unhandled)
        self._readings: dict[str, _Reading] = {}
        self._holds: Mapping[str, Hold] = {}

    def add(
        self,
        gpus: Iterable[Gpu],
        holds: Iterable[Hold],
        memories: Mapping[str, Mapping[str, Memory]],
        violations: Mapping[str, Mapping[str, int]],
    ) -> None:
        """Add a sample. memories: by key of the grant's files; failed readings are missing."""
        self._holds = {hold.key: hold for hold in holds}
        before, self._readings = self._readings, {}
        shown: dict[tuple[str, ...], Memory] = {}
        refused: dict[tuple[str, ...], float] = {}
        violated: dict[tuple[str, ...], float] = {}
        for key in (before.keys() | memories.keys()) & self._holds.keys():
            old = before.get(key, _NONE)
            new = _Reading(memories[key], dict(violations[key])) if key in memories else old
            self._readings[key] = new
            for uuid, memory in new.gpus.items():
                labels = container_labels(self._holds[key].container_key, uuid)
                shown[labels] = memory
                refused[labels] = _refused(old, new, uuid)
                violated[labels] = new.violations.get(uuid, 0) - old.violations.get(uuid, 0)
        self._used.update({labels: each.used_bytes for labels, each in shown.items()})
        self._limit.update({labels: each.limit_bytes for labels, each in shown.items()})
        self._overhead.update({labels: each.overhead_bytes for labels, each in shown.items()})
        self._refused.update(refused)
        self._violations.update(violated)
        self._add_gpus(gpus)

    def _add_gpus(self, gpus: Iterable[Gpu]) -> None:
        granted, used = Counter[str](), Counter[str]()
        for hold in self._holds.values():
            for uuid, part in hold.parts.items():
                granted[uuid] += part.memory_bytes
        for reading in self._readings.values():
            for uuid, memory in reading.gpus.items():
                used[uuid] += memory.used_bytes
        totals = {gpu.uuid: gpu.memory_bytes for gpu in gpus}
        self._gpu_total.update({(uuid,): total for uuid, total in totals.items()})
        self._gpu_granted.update({(uuid,): granted[uuid] for uuid in totals})
        self._gpu_used.update({(uuid,): used[uuid] for uuid in totals})

    def show(
        self, overheads: Overheads, strangers: Mapping[str, Collection[str]], whole: Container[str]
    ) -> None:
        """Show what NVML's figures say of each GPU. strangers: the control groups of processes
        without a share, by UUID. whole: the GPUs that pods hold whole, which need no share."""
        totals, unknown = Counter[str](), Counter[str]()
        for key, known in overheads.items():
            for uuid, overhead_bytes in known.items():
                totals[uuid] += overhead_bytes or 0
            parts = self._holds[key].parts if key in self._holds else {}
            for uuid in parts.keys() | known.keys():
                unknown[uuid] += known.get(uuid) is None
        self._gpu_overhead.update({(uuid,): total for uuid, total in totals.items()})
        counts: dict[tuple[str, ...], float] = {}
        for uuid in unknown.keys() | strangers.keys():
            counts[uuid, "not_measured"] = unknown[uuid]
        for uuid, cgroups in strangers.items():
            counts[uuid, "no_share"] = 0 if uuid in whole else len(cgroups)
        self._unhandled.update(counts)


def _refused(old: _Reading, new: _Reading, uuid: str) -> float:
    """Return the refusals between two samples."""
    if uuid not in old.gpus:
        return 0.0
    refused = new.gpus[uuid].refused_count - old.gpus[uuid].refused_count
    return float(min(max(refused, 0), _REFUSALS_MAX))
