"""The agent's Prometheus metrics, in one registry.

Holds only numbers. Other modules set them; endpoint.py serves them. docs/operations.md has the same
table, and a test compares the two.
"""

from __future__ import annotations

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
"""Up to the runtime's default timeout of 2 s; after 1.5 s the agent answers an error."""


class Metrics:
    """The agent's metrics; each instance has a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=self.registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, registry=self.registry)

        self.request_duration = Histogram(
            "gpuslice_nri_request_duration_seconds",
            "Time from a request of the container runtime to our answer, by request and outcome"
            " (adjusted, passed, refused, late, error). All containers of the node wait behind it.",
            ("request", "outcome"),
            buckets=_LATENCY_BUCKETS_S,
            registry=self.registry,
        )
        self.refusals = counter(
            "gpuslice_nri_refusals_total",
            "Requests refused on purpose, by reason. The pod's events have the words, and"
            " docs/operations.md says what to do about each reason.",
            "reason",
        )
        self.session_up = gauge(
            "gpuslice_nri_session_up",
            "1 while the agent is registered with the container runtime and synchronized; at 0 pods"
            " with a share of a GPU cannot start on this node.",
        )
        self.sessions = counter(
            "gpuslice_nri_sessions_total",
            "Sessions with the container runtime that came so far that containers were adjusted;"
            " more than one since the start means reconnects.",
        )
        self.connections_lost = counter(
            "gpuslice_nri_reconnects_total",
            "Times the agent had to connect anew, by cause: ended (the runtime stopped, or dropped"
            " us), absent (nothing listens), failed (the protocol or the socket broke).",
            "cause",
        )
        self.runtime = Info(
            "gpuslice_nri_runtime",
            "The container runtime of the last session, its version and its NRI's; empty before"
            " the first.",
            registry=self.registry,
        )
        self.synchronized_pods = gauge(
            "gpuslice_nri_synchronize_pods",
            "Pods that the runtime told of when the last session began.",
        )
        self.synchronized_containers = gauge(
            "gpuslice_nri_synchronize_containers",
            "Containers that the runtime told of when the last session began.",
        )
        self.strays = gauge(
            "gpuslice_stray_containers",
            "Containers found at the last Synchronize that are not as this agent makes them:"
            " not_adjusted (granted a share, made without this agent: no GPU), files_lost (the"
            " grant is gone from this host), foreign_gpu (a GPU, and no limit). The log names"
            " them.",
            "kind",
        )
        self.with_grant = gauge(
            "gpuslice_containers_with_grant", "Containers that hold a share of a GPU now."
        )
        self.not_enforceable = counter(
            "gpuslice_limit_not_enforceable_total",
            "Containers started whose program the limit may not reach (LimitNotEnforceable):"
            " static, 32 bit, or not of glibc. --unenforceable refuse does not start them; --strict"
            " covers those of musl.",
        )
        self.not_in_place = counter(
            "gpuslice_limit_not_in_place_total",
            "Containers with a share in which, once they ran, library, preload line or grant were"
            " not what this agent mounted, or could not be looked at. The log names them.",
        )
        self.unlimited = counter(
            "gpuslice_containers_unlimited_total",
            "Containers without a share that were created with GPUs, and so without a limit, by"
            " source: nvidia_runtime (NVIDIA_VISIBLE_DEVICES under NVIDIA's runtime), nri_plugin"
            " (another NRI plugin).",
            "source",
        )
        self.gpus = gauge("gpuslice_gpus", "GPUs of this node, as the driver tells them.")
        self.unusable = gauge(
            "gpuslice_unusable_gpus",
            "GPUs that the driver shows and that cannot be brought to containers, as they have no"
            " usable CDI device; /readyz and the Device object say why.",
        )
        self.overhead = gauge(
            "gpuslice_overhead_bytes",
            "What the driver holds of a GPU for the containers with a share, beyond what they are"
            " charged at once: code, local memory, larger contexts. Measured every second; a"
            " container's limit is less by its part.",
            "uuid",
        )
        self.not_measured = gauge(
            "gpuslice_containers_not_measured",
            "Containers with a share for which NVML had no figure at the last look (MPS, some MIG"
            " drivers, a driver that does not answer): the last measurement stands for them.",
        )
        self.api_up = gauge(
            "gpuslice_api_up",
            "1 while the agent knows what the API server says of this node, its Device and its"
            " pods; always 0 where the agent is told of no cluster.",
        )
        self.api_writes = counter(
            "gpuslice_api_writes_total",
            "Writes to the API server, by object (node, device, lease, event, pod) and outcome"
            " (written, failed). Those that fail are tried again; the log has the server's words.",
            "object",
            "outcome",
        )
        self.pods_removed = counter(
            "gpuslice_pods_removed_total",
            "Pods that the agent deleted, by reason: GRANT_OVERFILLS (bound to a GPU that was full;"
            " with --remove-unverified alone). The pod's event (GrantRefused) and the log have the"
            " words.",
            "reason",
        )
        self.grants = gauge(
            "gpuslice_grants",
            "Containers with a share, by the result of comparing them with the API server's pods:"
            " confirmed; mismatch (differs from the pod's grant, or the GPU was full);"
            " pod_not_found (created without the API server); unknown (no answer yet). None"
            " without a cluster.",
            "verification",
        )
        self.ready = gauge("gpuslice_ready", "1 while /readyz says ok.")

    def render(self) -> bytes:
        """Return the text format; called from the endpoint's threads."""
        return generate_latest(self.registry)
