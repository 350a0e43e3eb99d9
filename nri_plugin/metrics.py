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


_CONTAINER: Final = ("namespace", "pod", "container", "uuid")
"""A container and a GPU. `container` is empty where the containers of a pod share its grant."""


class Metrics:
    """The agent's metrics; each instance has a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)

        self._add_requests()
        self._add_containers()
        self._add_gpus()
        self._add_compute()
        self._add_services()

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _add_requests(self) -> None:
        self.request_duration = Histogram(
            "gpuslice_nri_request_duration_seconds",
            "Time from a request of the runtime to the agent's answer, by request and outcome"
            " (adjusted, passed, refused, late, error). All containers of the node wait for it.",
            ("request", "outcome"),
            buckets=_LATENCY_BUCKETS_S,
            registry=self.registry,
        )
        self.refusals = self._counter(
            "gpuslice_nri_refusals_total",
            "Requests that the agent refused, by reason. The pod's events have the text, and"
            " docs/operations.md what to do about each reason.",
            "reason",
        )
        self.session_up = self._gauge(
            "gpuslice_nri_session_up",
            "1 while the agent is registered with the container runtime and synchronized; at 0 pods"
            " with a share of a GPU cannot start on this node.",
        )
        self.sessions = self._counter(
            "gpuslice_nri_sessions_total",
            "Sessions that the agent established with the container runtime; more than one since"
            " the start means reconnects.",
        )
        self.connections_lost = self._counter(
            "gpuslice_nri_reconnects_total",
            "Reconnects to the container runtime, by cause: ended (the runtime stopped, or dropped"
            " the agent), absent (no process listens), failed (an error of protocol or socket).",
            "cause",
        )
        self.runtime = Info(
            "gpuslice_nri_runtime",
            "The container runtime of the last session, its version and its NRI's; empty before the"
            " first session.",
            registry=self.registry,
        )
        self.synchronized_pods = self._gauge(
            "gpuslice_nri_synchronize_pods",
            "Pods that the runtime reported at the start of the last session.",
        )
        self.synchronized_containers = self._gauge(
            "gpuslice_nri_synchronize_containers",
            "Containers that the runtime reported at the start of the last session.",
        )

    def _add_containers(self) -> None:
        self.strays = self._gauge(
            "gpuslice_stray_containers",
            "Containers at the last Synchronize that differ from the agent's adjustment:"
            " not_adjusted (created without the agent: no GPU for its share), files_lost (its grant"
            " is missing on this host), foreign_gpu (a GPU without a limit), nvidia_runtime (GPUs"
            " from NVIDIA's runtime: created without the agent). The log names them.",
            "kind",
        )
        self.with_grant = self._gauge(
            "gpuslice_containers_with_grant", "Containers that hold a share of a GPU now."
        )
        self.not_enforceable = self._counter(
            "gpuslice_limit_not_enforceable_total",
            "Containers that started although the limit may not apply to their program"
            " (LimitNotEnforceable): static, 32 bit, or not of glibc. --unenforceable refuse"
            " refuses them; --strict limits those of musl.",
        )
        self.not_in_place = self._counter(
            "gpuslice_limit_not_in_place_total",
            "Running containers with a share in which library, preload line or grant differ from"
            " what the agent mounted, or cannot be examined. The log names them.",
        )
        self.unlimited = self._counter(
            "gpuslice_containers_unlimited_total",
            "Containers without a share that were created with GPUs, which have no limit, by"
            " source: nvidia_runtime (NVIDIA_VISIBLE_DEVICES under NVIDIA's runtime), nri_plugin"
            " (another NRI plugin).",
            "source",
        )

    def _add_gpus(self) -> None:
        self.library = self._gauge(
            "gpuslice_library",
            "1 for the library that new containers mount, by its SHA-256. No series while the node"
            " has no library.",
            "sha256",
        )
        self.gpus = self._gauge("gpuslice_gpus", "GPUs of this node that the driver lists.")
        self.unusable = self._gauge(
            "gpuslice_unusable_gpus",
            "GPUs that the driver lists and that the agent cannot inject, because they have no"
            " usable CDI device; /readyz and the Device object have the reasons.",
        )
        self.whole_gpus = self._gauge(
            "gpuslice_whole_gpus",
            "GPUs assigned whole to pods (nvidia.com/gpu of the agent's device plugin).",
        )
        self.whole_refused = self._counter(
            "gpuslice_whole_gpu_refusals_total",
            "Allocations of whole GPUs that the agent refused the kubelet, because a share came"
            " first; the pod's event UnexpectedAdmissionError has the text.",
        )
        self.overhead = self._gauge(
            "gpuslice_overhead_bytes",
            "GPU memory that the driver holds for containers with a share beyond their charge:"
            " code, local memory, larger contexts. Measured every second; it lowers their limits.",
            "uuid",
        )
        self.sample_age = self._gauge(
            "gpuslice_sample_age_seconds",
            "Time since the last complete sample of the containers' memory; one is due every second"
            " (every three while no container uses a GPU). It grows while NVML does not answer, and"
            " if the measuring task has ended.",
        )
        self.not_measured = self._gauge(
            "gpuslice_containers_not_measured",
            "Containers with a share for which NVML had no figure at the last sample (MPS, some MIG"
            " drivers, a driver that does not answer); their last measurement stays in force.",
        )

    def _add_compute(self) -> None:
        self.throttled = self._counter(
            "gpuslice_container_gpu_throttled_seconds_total",
            "Time that launches of the container waited for its window on the GPU, summed over"
            " threads.",
            *_CONTAINER,
        )
        self.busy = self._counter(
            "gpuslice_container_gpu_busy_seconds_total",
            "Time in which the GPU did work of the container, as the library counts it when the"
            " work finishes; only where launches are checked.",
            *_CONTAINER,
        )
        self.turn_idle = self._counter(
            "gpuslice_container_gpu_turn_idle_seconds_total",
            "Time of the container's windows in which no work of it ran: from the start of a window"
            " to the first work, from the last work to the end (hand-over), and the program's own"
            " pauses. Counts only windows for which other containers waited, and those under"
            " --core-policy force.",
            *_CONTAINER,
        )
        self.share = self._gauge(
            "gpuslice_container_gpu_share_ratio",
            "Achieved share: part of the last second (window 1s) or ten (10s) in which the GPU did"
            " work of the container; only where launches are checked.",
            *_CONTAINER,
            "window",
        )
        self.requested = self._gauge(
            "gpuslice_container_gpu_request_ratio",
            "Requested share (gpu-core) of the GPU's time; no series without a cap.",
            *_CONTAINER,
        )
        self.nvml_utilization = self._gauge(
            "gpuslice_container_gpu_nvml_utilization_ratio",
            "Part of the driver's last sample period (at most a second) in which kernels of the"
            " container's processes ran (nvmlDeviceGetProcessUtilization); no series where the GPU"
            " does not support it.",
            *_CONTAINER,
        )

    def _add_services(self) -> None:
        self.long_kernels = self._counter(
            "gpuslice_long_kernel_containers_total",
            "Containers that ran a kernel of more than a second, which no component can interrupt"
            " (LimitNotEnforceable). The log names them.",
        )
        self.arbiter_up = self._gauge(
            "gpuslice_arbiter_up",
            "1 while the arbiter, which divides each GPU's time, has a heartbeat and serves; at 0"
            " each container keeps its own part of each cycle.",
        )
        self.arbiter_starts = self._counter(
            "gpuslice_arbiter_starts_total",
            "Arbiters that the agent started; more than one since its start means that they exit,"
            " or hang.",
        )
        self.api_up = self._gauge(
            "gpuslice_api_up",
            "1 while the agent's state of this node, its Device and its pods is in sync with the"
            " API server; always 0 without a cluster.",
        )
        self.api_writes = self._counter(
            "gpuslice_api_writes_total",
            "Writes to the API server, by object (node, device, lease, event) and outcome"
            " (written, failed). The agent retries failed ones; the log has the server's answer.",
            "object",
            "outcome",
        )
        self.grants = self._gauge(
            "gpuslice_grants",
            "Containers with a share, by the result of comparing them with the API server's pods:"
            " confirmed; mismatch (differs from the pod's grant, or the GPU was full);"
            " pod_not_found (created without the API server); unknown (no answer, or the"
            " pod is absent for less than a minute). None"
            " without a cluster.",
            "verification",
        )
        self.ready = self._gauge("gpuslice_ready", "1 while /readyz returns ok.")

    def render(self) -> bytes:
        """Return the text format; called from the endpoint's thread."""
        return generate_latest(self.registry)
