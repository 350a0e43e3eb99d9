"""The agent's Prometheus metrics, in one registry.

Other modules set the metrics, and endpoint.py serves them. docs/operations.md explains each
metric. A test compares that list with this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    generate_latest,
)

_LATENCY_BUCKETS_S: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005),
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0),
)
"""Bounds for the time of an answer. The agent answers by 1.5 s, the runtime's timeout is 2 s."""

_CONTAINER: Final = ("namespace", "pod", "container", "uuid")
"""Labels for a container and a GPU. `container` is empty where a pod's containers share a grant."""


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)

        self._add_requests()
        self._add_containers()
        self._add_gpus()
        self._add_shares()
        self._add_services()

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _container_counter(self, name: str, text: str) -> Counter:
        return self._counter(f"gpuslice_container_gpu_{name}", text, *_CONTAINER)

    def _container_gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return self._gauge(f"gpuslice_container_gpu_{name}", text, *_CONTAINER, *labels)

    def _add_requests(self) -> None:
        self.request_duration = Histogram(
            "gpuslice_nri_request_duration_seconds",
            "Time from a request to its answer: adjusted, passed, refused, late or error.",
            ("request", "outcome"),
            buckets=_LATENCY_BUCKETS_S,
            registry=self.registry,
        )
        self.refusals = self._counter(
            "gpuslice_nri_refusals_total", "Refusals; the pod's events have the texts.", "reason"
        )
        self.session_up = self._gauge(
            "gpuslice_nri_session_up", "1 while registered with the runtime and synchronized."
        )
        self.sessions = self._counter(
            "gpuslice_nri_sessions_total", "Sessions with the container runtime since the start."
        )
        self.connections_lost = self._counter(
            "gpuslice_nri_reconnects_total", "Reconnects to the container runtime.", "cause"
        )
        self.runtime = Info(
            "gpuslice_nri_runtime", "Runtime of the last session.", registry=self.registry
        )
        self.synchronized_pods = self._gauge(
            "gpuslice_nri_synchronize_pods", "Pods that the runtime listed last."
        )
        self.synchronized_containers = self._gauge(
            "gpuslice_nri_synchronize_containers", "Containers that the runtime listed last."
        )

    def _add_containers(self) -> None:
        self.strays = self._gauge(
            "gpuslice_stray_containers", "Containers that differ from the adjustment.", "kind"
        )
        self.with_grant = self._gauge(
            "gpuslice_containers_with_grant", "Containers that hold a share of a GPU."
        )
        self.not_enforceable = self._counter(
            "gpuslice_limit_not_enforceable_total", "Containers whose limit may not apply."
        )
        self.not_in_place = self._counter(
            "gpuslice_limit_not_in_place_total", "Containers whose limit is missing."
        )
        self.audit_findings = self._gauge(
            "gpuslice_audit_findings",
            "1 while the audit sees it, 0 afterwards.",
            *_CONTAINER[:3],
            "finding",
        )
        self.audit_looks = self._counter(
            "gpuslice_audit_looks_total", "Looks of the audit at the containers' processes."
        )
        self.unlimited = self._counter(
            "gpuslice_containers_unlimited_total", "Containers with GPUs and no share.", "source"
        )
        for source in ("nvidia_runtime", "nri_plugin"):
            self.unlimited.labels(source)  # `increase` misses an event that creates its series

        self.limits_restored = self._counter(
            "gpuslice_driver_limits_restored_total", "Driver's limits that were set again."
        )

    def _add_gpus(self) -> None:
        self.library = self._gauge(
            "gpuslice_library", "1 for the library that new containers mount.", "sha256"
        )
        self.gpus = self._gauge("gpuslice_gpus", "GPUs that the driver lists.")
        self.unusable = self._gauge(
            "gpuslice_unusable_gpus", "GPUs without a usable CDI device; /readyz has the reasons."
        )
        self.whole_gpus = self._gauge("gpuslice_whole_gpus", "GPUs assigned whole to pods.")
        self.whole_refused = self._counter(
            "gpuslice_whole_gpu_refusals_total", "Allocations of whole GPUs that the agent refused."
        )
        self.memory_total = self._gauge(
            "gpuslice_gpu_memory_total_bytes", "Memory of the GPU, by NVML.", "uuid"
        )
        self.memory_granted = self._gauge(
            "gpuslice_gpu_memory_granted_bytes", "Memory that is granted.", "uuid"
        )
        self.memory_used = self._gauge(
            "gpuslice_gpu_memory_used_bytes", "Memory that containers use.", "uuid"
        )
        self.unhandled = self._gauge(
            "gpuslice_gpu_unhandled_containers", "Containers not under control.", "uuid", "reason"
        )
        self.overhead = self._gauge(
            "gpuslice_overhead_bytes", "Memory of the driver for containers, not charged.", "uuid"
        )
        self.sample_age = self._gauge(
            "gpuslice_sample_age_seconds", "Time since the last complete sample of memory."
        )
        self.not_measured = self._gauge(
            "gpuslice_containers_not_measured", "Containers for which NVML had no figure."
        )

    def _add_shares(self) -> None:
        self.container_used = self._container_gauge(
            "memory_used_bytes", "GPU memory: its charge, and the driver's overhead."
        )
        self.container_limit = self._container_gauge(
            "memory_limit_bytes", "The limit of GPU memory of the container."
        )
        self.container_overhead = self._container_gauge(
            "memory_overhead_bytes", "Measured memory that the driver holds beyond the charge."
        )
        self.refused_allocations = self._container_counter(
            "refused_allocations_total", "Allocations that were refused at the limit."
        )
        self.limit_violations = self._container_counter(
            "limit_violations_total", "Times that the memory, by NVML, rose above the limit."
        )
        self.throttled = self._container_counter(
            "throttled_seconds_total", "Time that launches waited, summed over threads."
        )
        self.busy = self._container_counter(
            "busy_seconds_total", "GPU time of launches; only where launches are checked."
        )
        self.share = self._container_gauge(
            "share_ratio", "Achieved share, only where launches are checked.", "window"
        )
        self.requested = self._container_gauge(
            "request_ratio", "Requested share of the GPU's time; no series without a cap."
        )
        self.policies = self._container_gauge(
            "policy_info", "Compute policy. The value is always 1.", "policy"
        )
        self.limits_info = self._container_gauge(
            "memory_limits_info", "Which memory limit is in force. The value is 1.", "limits"
        )
        self.nvml_utilization = self._container_gauge(
            "nvml_utilization_ratio", "Part of NVML's last sample period with kernels."
        )

    def _add_services(self) -> None:
        self.long_kernels = self._counter(
            "gpuslice_long_kernel_containers_total", "Containers with kernels of over a second."
        )
        self.arbiter_up = self._gauge(
            "gpuslice_arbiter_up", "1 while the arbiter has a heartbeat and serves."
        )
        self.arbiter_starts = self._counter(
            "gpuslice_arbiter_starts_total", "Arbiters that the agent started."
        )
        self.api_up = self._gauge(
            "gpuslice_api_up", "1 while node, Device and pods are in sync; 0 without a cluster."
        )
        self.api_writes = self._counter(
            "gpuslice_api_writes_total", "Writes to the API server.", "object", "outcome"
        )
        self.grants = self._gauge(
            "gpuslice_grants", "Containers, compared with the API server's pods.", "verification"
        )
        self.ready = self._gauge("gpuslice_ready", "1 while /readyz returns ok.")

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format. Called from the endpoint's thread."""
        return generate_latest(self.registry)


class Series:
    """A metric with one series per set of labels. An update removes the series that it does not
    contain, for example those of ended containers. A gauge is set, a counter is increased."""

    def __init__(self, metric: Counter | Gauge) -> None:
        self._metric = metric
        self._children: dict[tuple[str, ...], Callable[[float], None]] = {}
        self._counts = isinstance(metric, Counter)
        self._values: Mapping[tuple[str, ...], float] = {}

    def update(self, values: Mapping[tuple[str, ...], float]) -> None:
        """The caller must not change `values` afterwards."""
        if values == self._values and not (self._counts and any(values.values())):
            return  # as most are
        for labels in self._children.keys() - values.keys():
            self._metric.remove(*labels)
            del self._children[labels]
        last, counts = self._values, self._counts
        for labels, value in values.items():
            if labels not in self._children:
                child = self._metric.labels(*labels)
                self._children[labels] = child.inc if isinstance(child, Counter) else child.set
            elif value == (0 if counts else last[labels]):
                continue
            self._children[labels](value)
        self._values = values


@lru_cache(maxsize=1024)
def container_labels(container_key: str, uuid: str) -> tuple[str, ...]:
    """Return the values of the labels _CONTAINER. container_key: as in the ledger's Hold."""
    namespace, pod, *container = container_key.split("/")
    return namespace, pod, *(container or [""]), uuid
