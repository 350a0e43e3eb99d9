"""The live use of a node's GPUs, from the text of its agent's metrics. Without I/O.

A figure that the agent does not have is None, for example from an older agent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from prometheus_client.metrics import MetricWrapperBase

_PREFIXES: Final = (b"gpuslice_container_gpu_", b"gpuslice_gpu_")
_WINDOW: Final = "10s"

Key = tuple[str, str, str, str]
"""Namespace, pod, container ("" if the pod's containers share a grant) and the GPU's UUID."""


@dataclass(frozen=True, slots=True)
class SliceUse:
    """What a container uses of a GPU. throttled_s: the time that launches waited, summed over
    threads, since the container's start. throttled_ratio: the same per second since the previous
    sample."""

    used_bytes: float | None = None
    limit_bytes: float | None = None
    driver_bytes: float | None = None
    refused_allocations: float | None = None
    limit_violations: float | None = None
    share_ratio: float | None = None
    request_ratio: float | None = None
    busy_s: float | None = None
    throttled_s: float | None = None
    throttled_ratio: float | None = None
    policy: str = ""


@dataclass(frozen=True, slots=True)
class GpuUse:
    """used_bytes: of containers with a share. unhandled: containers without a share, or whose
    memory is not measured."""

    used_bytes: float | None = None
    unhandled: float | None = None


@dataclass(frozen=True, slots=True)
class Use:
    """The use of one node."""

    slices: Mapping[Key, SliceUse] = field(default_factory=dict)
    gpus: Mapping[str, GpuUse] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """The use at one time of a monotonic clock."""

    at_s: float
    use: Use

    def since(self, before: Sample | None) -> Use:
        """Return the use with the rates since an earlier sample."""
        if before is None or before.at_s >= self.at_s:
            return self.use
        earlier, passed_s = before.use.slices, self.at_s - before.at_s
        slices = {}
        for key, now in self.use.slices.items():
            was = earlier[key].throttled_s if key in earlier else None
            if was is not None and now.throttled_s is not None:
                now = replace(now, throttled_ratio=max(0.0, now.throttled_s - was) / passed_s)
            slices[key] = now
        return replace(self.use, slices=slices)


def parse(page: bytes, at_s: float) -> Sample:
    """Return the figures of a page in Prometheus' text format. Raises ValueError."""
    of_slice, of_gpu = _names()
    slices: dict[Key, dict[str, float | str]] = {}
    gpus: dict[str, dict[str, float]] = {}
    for name, labels, value in _samples(page):
        uuid = labels.get("uuid", "")
        if name in of_gpu:
            gpus.setdefault(uuid, {})[of_gpu[name]] = value
            continue
        container = labels.get("namespace", ""), labels.get("pod", ""), labels.get("container", "")
        where = (*container, uuid)
        if "policy" in labels:
            slices.setdefault(where, {})["policy"] = labels["policy"]
        elif name in of_slice and labels.get("window", _WINDOW) == _WINDOW:
            slices.setdefault(where, {})[of_slice[name]] = value
    return Sample(
        at_s,
        Use(
            {key: SliceUse(**figures) for key, figures in slices.items()},  # type: ignore[arg-type]
            {uuid: GpuUse(**figures) for uuid, figures in gpus.items()},
        ),
    )


def _samples(page: bytes) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """Yield the name, labels and value of our series. The parser is slow, so that other lines are
    skipped and it is imported after the first frame of `top`."""
    from prometheus_client.parser import text_string_to_metric_families

    kept = b"\n".join(line for line in page.splitlines() if line.startswith(_PREFIXES))
    for family in text_string_to_metric_families(kept.decode(errors="replace") + "\n"):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


@cache
def _names() -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the fields of SliceUse and of GpuUse, by the names of the agent's metrics."""
    from nri_plugin.metrics import Metrics

    own = Metrics()
    of_slice = {
        "used_bytes": own.container_used,
        "limit_bytes": own.container_limit,
        "driver_bytes": own.container_overhead,
        "refused_allocations": own.refused_allocations,
        "limit_violations": own.limit_violations,
        "share_ratio": own.share,
        "request_ratio": own.requested,
        "busy_s": own.busy,
        "throttled_s": own.throttled,
    }
    of_gpu = {"used_bytes": own.memory_used, "unhandled": own.unhandled}
    return _by_name(of_slice), _by_name(of_gpu)


def _by_name(metrics: Mapping[str, MetricWrapperBase]) -> Mapping[str, str]:
    return {
        f"{described.name}{'_total' if described.type == 'counter' else ''}": name
        for name, metric in metrics.items()
        for described in metric.describe()
    }
