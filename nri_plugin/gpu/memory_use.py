"""Containers' use of GPU memory: metrics of each container and of each GPU.

The input is what measuring.py reads: charges and refusals of regions, limits and overheads of
grants, and NVML's figures. The tenant can write a region. Therefore the charge counts up to the
limit, and the time between two samples limits an increase of refusals. A container's first sample
is only a baseline, because the container may have run before this agent started.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping
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


_Reading = tuple[Mapping[str, Memory], Mapping[str, int]]
"""A sample of one container: its memory and, as Measured has them, its violations, by UUID."""


class MemoryUse:
    def __init__(self, metrics: Metrics) -> None:
        self._of_container = {
            "used_bytes": Series(metrics.container_used),
            "limit_bytes": Series(metrics.container_limit),
            "overhead_bytes": Series(metrics.container_overhead),
        }
        self._refused = Series(metrics.refused_allocations)
        self._violations = Series(metrics.limit_violations)
        self._total = Series(metrics.memory_total)
        self._granted = Series(metrics.memory_granted)
        self._used = Series(metrics.memory_used)
        self._overhead = Series(metrics.overhead)
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
        used, granted = Counter[str](), Counter[str]()
        for key, hold in self._holds.items():
            granted.update({uuid: part.memory_bytes for uuid, part in hold.parts.items()})
            old = before.get(key, ({}, {}))
            new = (memories[key], dict(violations[key])) if key in memories else old
            self._readings[key] = new
            for uuid, memory in new[0].items():
                labels = container_labels(hold.container_key, uuid)
                used[uuid] += memory.used_bytes
                shown[labels] = memory
                refused[labels] = _refused(old[0].get(uuid, memory), memory)
                violated[labels] = new[1].get(uuid, 0) - old[1].get(uuid, 0)
        for name, series in self._of_container.items():
            series.update({labels: getattr(each, name) for labels, each in shown.items()})
        self._refused.update(refused)
        self._violations.update(violated)
        totals = {gpu.uuid: gpu.memory_bytes for gpu in gpus}
        for series, amounts in (
            (self._total, totals),
            (self._granted, granted),
            (self._used, used),
        ):
            series.update({(uuid,): amounts.get(uuid, 0) for uuid in totals})

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
        self._overhead.update({(uuid,): total for uuid, total in totals.items()})
        counts: dict[tuple[str, ...], float] = {}
        for uuid in unknown.keys() | strangers.keys():
            counts[uuid, "not_measured"] = unknown[uuid]
        for uuid, cgroups in strangers.items():
            counts[uuid, "no_share"] = 0 if uuid in whole else len(cgroups)
        self._unhandled.update(counts)


def _refused(old: Memory, new: Memory) -> float:
    """Return the refusals between two samples."""
    return float(min(max(new.refused_count - old.refused_count, 0), _REFUSALS_MAX))
