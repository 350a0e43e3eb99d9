"""All metrics of the scheduler, in one registry. Names follow Prometheus' conventions.

Other modules set the metrics, and endpoint.py serves them. docs/scheduling.md must list them too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

_LATENCY_BUCKETS_S: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005),
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
"""The upper bounds of the histogram, from filter's fractions of a millisecond to slow binds."""


class Metrics:
    """The scheduler's metrics. Each instance has its own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self.verb_duration = histogram(
            "gpuslice_scheduler_verb_duration_seconds",
            "Time from kube-scheduler's call to the answer, by outcome: answered or error.",
            ("verb", "outcome"),
            buckets=_LATENCY_BUCKETS_S,
        )
        self.lease_held = gauge(
            "gpuslice_scheduler_lease_held", "1 while kube-scheduler's Lease names this pod."
        )
        self.second_installation = gauge(
            "gpuslice_scheduler_second_installation",
            "1 while kube-scheduler calls this process and another pod's holds the Lease.",
        )
        self.ready = gauge("gpuslice_scheduler_ready", "1 while /readyz returns ok.")
        self.watch_age = gauge(
            "gpuslice_scheduler_watch_age_seconds",
            "Time since the API server's last message on these objects: about a minute at most.",
            ("kind",),
        )
        self.lists = counter(
            "gpuslice_scheduler_lists_total", "Full lists of all objects of a kind.", ("kind",)
        )
        self.waiting = gauge(
            "gpuslice_scheduler_waiting_pods",
            "Unschedulable pods with a request for GPUs. Take the maximum over the replicas.",
        )
        self.requeued = counter(
            "gpuslice_scheduler_requeued_pods_total",
            "Unschedulable pods that the extender requeued, by cause: capacity or sample.",
            ("cause",),
        )
        self.enforced = counter(
            "gpuslice_scheduler_admission_enforced_total",
            "Bindings of admission policies that this process changed to Deny.",
        )
        self.events = counter(
            "gpuslice_scheduler_events_total",
            "Kubernetes Events, by outcome: written, dropped (too many), failed.",
            ("outcome",),
        )
        self.queue_gpus = gauge(
            "gpuslice_scheduler_queue_gpus",
            "GPUs of a queue and all below it: quota, allocated, requested. Only in the leader.",
            ("queue", "state"),
        )
        self.queue_pods = gauge(
            "gpuslice_scheduler_queue_pods",
            "Pods of a queue and all below it: waiting (for quota), unplaceable (no GPU has room).",
            ("queue", "state"),
        )
        self._add_fleet(gauge)

    def clear_queues(self) -> None:
        self.queue_gpus.clear()
        self.queue_pods.clear()

    def _add_fleet(self, gauge: Callable[..., Gauge]) -> None:
        """Add the gauges that `endpoint.measure` computes from the state."""
        self.nodes = gauge(
            "gpuslice_scheduler_nodes",
            "Nodes, by the reason why they are excluded; FITS: not excluded.",
            ("reason",),
        )
        self.gpus = gauge("gpuslice_scheduler_gpus", "GPUs: usable, unusable.", ("state",))
        self.memory_bytes = gauge(
            "gpuslice_scheduler_gpu_memory_bytes",
            "Memory of all GPUs: total, granted, and free (of usable GPUs only).",
            ("state",),
        )
        self.core_ratio = gauge(
            "gpuslice_scheduler_gpu_core_granted_ratio",
            "Granted fraction of the compute time of all GPUs, 0 to 1.",
        )
        self.largest_free = gauge(
            "gpuslice_scheduler_largest_free_slice_bytes", "The largest share that fits now."
        )
        self.assumed = gauge(
            "gpuslice_scheduler_assumed_pods",
            "Pods with chosen GPUs whose binding the watch has not reported yet.",
        )
        self.problems = gauge(
            "gpuslice_scheduler_problems", "Problems that need a person; /debug/fleet lists them."
        )

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
