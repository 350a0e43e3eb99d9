"""The live use of a node's GPUs, from the text of its agent's metrics. Without I/O.

A figure that the agent does not have is None, for example from an older agent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from prometheus_client.metrics import MetricWrapperBase

_PREFIXES: Final = (b"gpuslice_container_gpu_", b"gpuslice_gpu_")
_WINDOW: Final = "10s"
_GPU_USED: Final = "gpu"

Key = tuple[str, str, str, str]
"""Namespace, pod, container ("" if the pod's containers share a grant) and the GPU's UUID."""


@dataclass(frozen=True, slots=True)
class SliceUse:
    """What a container uses of a GPU. throttled_s: the time that launches waited, summed over
    threads. throttled_ratio: the same per second since the previous sample. refused: allocations at
    the limit. violations: how often the measured memory rose above it. Counts are since the
    container's start."""

    used_bytes: float | None = None
    limit_bytes: float | None = None
    share_ratio: float | None = None
    throttled_s: float | None = None
    throttled_ratio: float | None = None
    refused: float | None = None
    violations: float | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """The use of one node at one time of a monotonic clock. gpus: the used bytes by UUID."""

    at_s: float
    slices: Mapping[Key, SliceUse]
    gpus: Mapping[str, float]

    def since(self, before: Sample | None) -> Sample:
        """Return the sample with the rates since an earlier one."""
        if before is None or before.at_s >= self.at_s:
            return self
        slices = {**self.slices}
        for key, now in self.slices.items():
            was = before.slices.get(key, now).throttled_s
            if was is not None and now.throttled_s is not None:
                ratio = max(0.0, now.throttled_s - was) / (self.at_s - before.at_s)
                slices[key] = replace(now, throttled_ratio=ratio)
        return replace(self, slices=slices)


def parse(page: bytes, at_s: float) -> Sample:
    """Return the figures of a page in Prometheus' text format. Raises ValueError."""
    from prometheus_client.parser import text_string_to_metric_families  # after the first frame

    slices: defaultdict[Key, dict[str, float]] = defaultdict(dict)
    gpus: dict[str, float] = {}
    # The parser is slow, so other lines are skipped.
    kept = b"\n".join(line for line in page.splitlines() if line.startswith(_PREFIXES))
    families = text_string_to_metric_families(kept.decode(errors="replace") + "\n")
    for name, labels, value, *_ in (sample for family in families for sample in family.samples):
        namespace, pod, container = (labels.get(e, "") for e in ("namespace", "pod", "container"))
        field = _fields().get(name)
        if field == _GPU_USED:
            gpus[labels.get("uuid", "")] = value
        elif field and labels.get("window", _WINDOW) == _WINDOW:
            slices[namespace, pod, container, labels.get("uuid", "")][field] = value
    return Sample(at_s, {key: SliceUse(**figures) for key, figures in slices.items()}, gpus)


@cache
def _fields() -> Mapping[str, str]:
    """Return the fields of SliceUse, and _GPU_USED, by the names of the agent's metrics."""
    from nri_plugin.metrics import Metrics

    own = Metrics()
    metrics: Mapping[str, MetricWrapperBase] = {
        "used_bytes": own.container_used,
        "limit_bytes": own.container_limit,
        "share_ratio": own.share,
        "throttled_s": own.throttled,
        "refused": own.refused_allocations,
        "violations": own.limit_violations,
        _GPU_USED: own.memory_used,
    }
    described = {field: next(iter(metric.describe())) for field, metric in metrics.items()}
    return {f"{m.name}{'_total' * (m.type == 'counter')}": f for f, m in described.items()}
