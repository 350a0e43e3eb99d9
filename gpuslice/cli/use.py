"""The live use of a node's GPUs, from the text of its agent's metrics. Without I/O.

A figure that the agent does not have is None, for example from an older agent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from prometheus_client.metrics import MetricWrapperBase

_PREFIXES: Final = (b"gpuslice_container_gpu_", b"gpuslice_gpu_")
_WINDOW: Final = "10s"
_LABELS: Final = ("namespace", "pod", "container", "uuid")

Key = tuple[str, str, str, str]
"""Namespace, pod, container ("" if the pod's containers share a grant) and the GPU's UUID."""


@dataclass(frozen=True, slots=True)
class SliceUse:
    """What a container uses of a GPU. throttled_s: the time that launches waited, summed over
    threads, since the container's start. throttled_ratio: the same per second since the previous
    sample."""

    used_bytes: float | None = None
    limit_bytes: float | None = None
    share_ratio: float | None = None
    throttled_s: float | None = None
    throttled_ratio: float | None = None
    refused: float | None = None
    """Allocations that were refused at the limit, since the container's start."""
    violations: float | None = None
    """How often the measured memory has risen above the limit."""


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
    of_slice, of_gpu = _names()
    slices: dict[Key, dict[str, float]] = {}
    gpus: dict[str, float] = {}
    for name, labels, value in _samples(page):
        namespace, pod, container, uuid = (labels.get(each, "") for each in _LABELS)
        if name == of_gpu:
            gpus[uuid] = value
        elif name in of_slice and labels.get("window", _WINDOW) == _WINDOW:
            slices.setdefault((namespace, pod, container, uuid), {})[of_slice[name]] = value
    return Sample(at_s, {key: SliceUse(**figures) for key, figures in slices.items()}, gpus)


def _samples(page: bytes) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """Yield the name, labels and value of our series. The parser is slow, so that other lines are
    skipped and it is imported after the first frame of `top`."""
    from prometheus_client.parser import text_string_to_metric_families

    kept = b"\n".join(line for line in page.splitlines() if line.startswith(_PREFIXES))
    for family in text_string_to_metric_families(kept.decode(errors="replace") + "\n"):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


@cache
def _names() -> tuple[Mapping[str, str], str]:
    """Return the fields of SliceUse by the names of the agent's metrics, and the name of a GPU's
    used bytes."""
    from nri_plugin.metrics import Metrics

    own = Metrics()
    of_slice = {
        "used_bytes": own.container_used,
        "limit_bytes": own.container_limit,
        "share_ratio": own.share,
        "throttled_s": own.throttled,
        "refused": own.refused_allocations,
        "violations": own.limit_violations,
    }
    return {_name(metric): field for field, metric in of_slice.items()}, _name(own.memory_used)


def _name(metric: MetricWrapperBase) -> str:
    (described,) = metric.describe()
    return described.name + "_total" * (described.type == "counter")
