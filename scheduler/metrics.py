"""All metrics of the scheduler, in one registry; names follow Prometheus' conventions.

Holds numbers only: the other modules set them, endpoint.py serves them. docs/scheduling.md has the
same table, and a test compares the two.
"""

from __future__ import annotations

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
"""filter and prioritize take milliseconds; a bind depends on the API server."""


class Metrics:
    """The scheduler's metrics; each instance has its own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self.verb_duration = histogram(
            "gpuslice_scheduler_verb_duration_seconds",
            "Time from a verb of kube-scheduler (filter, prioritize, preempt, bind) to its answer,"
            " by outcome: answered, or error (the verb's error says which). kube-scheduler places"
            " one pod at a time, and waits for all but bind.",
            ("verb", "outcome"),
            buckets=_LATENCY_BUCKETS_S,
        )
        self.lease_held = gauge(
            "gpuslice_scheduler_lease_held",
            "1 while this process holds the Lease that a bind requires. The sum over all"
            " replicas is 1 within seconds of a pod being tried, at the latest.",
        )
        self.lease_changes = counter(
            "gpuslice_scheduler_lease_changes_total",
            "Times this process came to be so, as to the Lease: taking (has it, and looks at what"
            " is there first), holding, yielding (gives it back), standby.",
            ("role",),
        )
        self.lease_failures = counter(
            "gpuslice_scheduler_lease_failures_total",
            "Times the API server did not do what was asked of the Lease: look, take, renew,"
            " give_back, campaign.",
            ("request",),
        )
        self.lease_rival = gauge(
            "gpuslice_scheduler_second_installation",
            "1 while this process is asked to bind, and a process of another installation holds the"
            " Lease: two are installed, and this one does nothing. /readyz says which.",
        )
        self.ready = gauge(
            "gpuslice_scheduler_ready",
            "1 while /readyz says ok: what the API server knows was read, and is followed.",
        )
        self.watch_age = gauge(
            "gpuslice_scheduler_watch_age_seconds",
            "Since the API server last said something of these objects; it does so about once a"
            " minute at least. +Inf before the first list.",
            ("kind",),
        )
        self.lists = counter(
            "gpuslice_scheduler_lists_total",
            "Times all objects of a kind were listed: at the start, with each term of the Lease,"
            " and where a watch could not be taken up again.",
            ("kind",),
        )
        self.nodes = gauge(
            "gpuslice_scheduler_nodes",
            "Nodes, by whether pods may get GPUs of them: FITS, or why not (docs/scheduling.md"
            " has the reasons).",
            ("reason",),
        )
        self.gpus = gauge(
            "gpuslice_scheduler_gpus",
            "GPUs, by state: usable, or not (unhealthy, cordoned, excluded).",
            ("state",),
        )
        self.memory_bytes = gauge(
            "gpuslice_scheduler_gpu_memory_bytes",
            "Memory of all GPUs, by state: total, granted, and free, which is what usable GPUs"
            " have left.",
            ("state",),
        )
        self.core_ratio = gauge(
            "gpuslice_scheduler_gpu_core_granted_ratio",
            "Compute time that is granted, 0 to 1 of all GPUs.",
        )
        self.largest_free = gauge(
            "gpuslice_scheduler_largest_free_slice_bytes",
            "The most that one share can get now, on the best GPU. Beside what is free in all, it"
            " shows how fragmented the GPUs are.",
        )
        self.assumed = gauge(
            "gpuslice_scheduler_assumed_pods",
            "Pods whose GPUs are chosen and whose binding was not seen yet.",
        )
        self.problems = gauge(
            "gpuslice_scheduler_problems",
            "What a person should look at: unreadable annotations and inventories, GPUs that are"
            " gone or overfull, node agents that are not ready. /debug/fleet lists them.",
        )
        self.requeued = counter(
            "gpuslice_scheduler_requeued_pods_total",
            "Times a pod was refused, room for it came, and kube-scheduler did not retry it within"
            " seconds, so that the extender requested that.",
        )
        self.events = counter(
            "gpuslice_scheduler_events_total",
            "Kubernetes Events, by what became of them: written, dropped (too many), failed.",
            ("outcome",),
        )

    def render(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self.registry)
