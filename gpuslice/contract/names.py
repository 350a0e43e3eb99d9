"""Names on the wire: one constant each, with its meaning. No logic, no I/O.

Kubernetes names are Koordinator's where it has one, so that our pods run under koordlet and its
pods run under our node agent. Our own names start with `gpuslice.io/` or `/.gpuslice`.
"""

from __future__ import annotations

from typing import Final

# --- Kubernetes: what a user writes --------------------------------------------------------------

LABEL_ISOLATION_PROVIDER: Final = "koordinator.sh/gpu-isolation-provider"
"""Pod label that requests isolation. Its only value is `hami-core`, in any case."""

ISOLATION_PROVIDER: Final = "hami-core"

RESOURCE_GPU: Final = "koordinator.sh/gpu"
RESOURCE_CORE: Final = "koordinator.sh/gpu-core"
"""Percent of one GPU's compute time."""
RESOURCE_MEMORY: Final = "koordinator.sh/gpu-memory"
"""Bytes of one GPU's memory."""
RESOURCE_MEMORY_RATIO: Final = "koordinator.sh/gpu-memory-ratio"
"""Percent of one GPU's memory."""
RESOURCE_SHARED: Final = "koordinator.sh/gpu.shared"
"""Number of GPUs over which the request is divided."""

DEPRECATED_RESOURCES: Final = {
    f"kubernetes.io/{name}": f"koordinator.sh/{name}"
    for name in ("gpu", "gpu-core", "gpu-memory", "gpu-memory-ratio", "rdma", "fpga")
}
"""Earlier names that Koordinator still reads in requests, Devices and allocations."""

RESOURCE_NVIDIA_GPU: Final = "nvidia.com/gpu"
"""Whole NVIDIA GPUs: the node's device plugin allocates them, which is the agent with --whole-gpus,
and NVIDIA's otherwise."""
RESOURCES_WHOLE: Final = (RESOURCE_NVIDIA_GPU, "amd.com/gpu", "dcu.com/gpu")
"""Whole GPUs. A device plugin allocates them; our scheduler does not."""
RESOURCES_KOORDINATOR_ONLY: Final = (
    "koordinator.sh/rdma",
    "koordinator.sh/fpga",
    "huawei.com/npu-core",
    "huawei.com/npu-cpu",
    "huawei.com/npu-dvpp",
)
"""Resources that Koordinator's scheduler allocates and ours does not."""

ANNOTATION_POLICY: Final = "gpuslice.io/policy"
"""Pod annotation: `binpack` or `spread`, for this pod's shares."""

ANNOTATION_ALLOCATE_HINT: Final = "scheduling.koordinator.sh/device-allocate-hint"
"""Pod annotation: which GPUs are acceptable (Koordinator's JSON)."""
ANNOTATION_JOINT_ALLOCATE: Final = "scheduling.koordinator.sh/device-joint-allocate"
ANNOTATION_PARTITION_SPEC: Final = "scheduling.koordinator.sh/gpu-partition-spec"
LABEL_PARTITION_POLICY: Final = "node.koordinator.sh/gpu-partition-policy"
"""Node label: `Honor` requires a pod's whole GPUs to be one group of the partition table."""

# --- Kubernetes: what the scheduler writes, in the Binding ---------------------------------------

ANNOTATION_DEVICE_ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
"""Pod annotation: the allocation, Koordinator's JSON (allocation.py)."""

ANNOTATION_GRANTS: Final = "gpuslice.io/grants"
"""Pod annotation: which container gets how much of which GPU (grants.py)."""

ANNOTATION_WRITER: Final = "gpuslice.io/writer"
"""Pod annotation: the kube-scheduler whose extender bound the pod: its identity, which no other
process has. An admission policy compares it with the holder of kube-scheduler's Lease."""

ANNOTATION_REQUEUED_AT: Final = "gpuslice.io/requeued-at"
"""Pod annotation: when capacity became free for an unschedulable pod that was not retried. Setting
it makes kube-scheduler requeue the pod. The value is informational; no program reads it."""

ANNOTATION_REQUIRED_PLUGINS: Final = "required-plugins.noderesource.dev"
"""Annotation of NRI's default validator, followed by a scope (required_plugins.py)."""
SCOPE_POD: Final = "/pod"
SCOPE_CONTAINER: Final = "/container."
"""Followed by the container's name. Overrides the pod's scope, which overrides the bare key."""

ANNOTATION_TOLERATES_MISSING_AGENT: Final = "gpuslice.io/tolerates-missing-agent"
"""`true`: the pod runs without the agent where the operator requires the agent for every container.
docs/failures.md has the operator configure this name; only the validator reads it."""

DEVICE_TYPE_GPU: Final = "gpu"
"""Key of the GPU entries in the allocation, and type of those in the Device object."""

# --- Kubernetes: what the node reports -----------------------------------------------------------

DEVICE_API_VERSION: Final = "scheduling.koordinator.sh/v1alpha1"
DEVICE_KIND: Final = "Device"
DEVICE_PLURAL: Final = "devices"
"""A node's inventory: Koordinator's cluster-scoped object with the node's name."""

LABEL_GPU_MODEL: Final = "node.koordinator.sh/gpu-model"
"""Label of a GPU in the Device object: NVML's name of it. Koordinator has the key on nodes, which
may have GPUs of several models."""
LABEL_GPU_LINK: Final = "gpuslice.io/link"
"""Label of a GPU in the Device object: GPUs of a node with equal values share an NVLink."""

ANNOTATION_CORDONED_GPUS: Final = "gpuslice.io/cordoned-gpus"
"""Node annotation: comma-separated UUIDs of cordoned GPUs: no new shares, existing ones stay."""
ANNOTATION_EXCLUDED_GPUS: Final = "gpuslice.io/excluded-gpus"
"""Node annotation: comma-separated UUIDs of GPUs that gpuslice does not allocate."""

LABEL_DEPLOY_DEVICE_PLUGIN: Final = "nvidia.com/gpu.deploy.device-plugin"
"""Node label of NVIDIA's GPU Operator: `true` where it runs its device plugin. It sets `true` where
the label is missing, and respects another value."""
LABEL_DEPLOY_VALIDATOR: Final = "nvidia.com/gpu.deploy.operator-validator"
"""The same for its validator, which fails on a node that offers no nvidia.com/gpu."""

NAMESPACE: Final = "gpuslice-system"
"""Namespace of our own objects."""
AGENT: Final = "gpuslice-agent"
"""Name of the agent's DaemonSet, of its pods' label `app.kubernetes.io/name`, and of its writes in
managedFields, by which they are recognized."""
DISTRIBUTOR: Final = "gpuslice-distributor"
UNINSTALLER: Final = "gpuslice-uninstall"
"""Name of the DaemonSet that removes a node's files before the chart is deleted."""
LABEL_NAME: Final = "app.kubernetes.io/name"
LEASE_AGENT_PREFIX: Final = "agent-"
"""Followed by the node's name: the Lease that the node's agent renews, in our namespace."""
AGENT_LEASE_RENEW_S: Final = 10
"""Interval at which an agent renews its Lease."""
AGENT_LEASE_EXPIRED_AFTER_S: Final = 40
"""Time without a renewal after which the scheduler excludes the node: Kubernetes' own timeout for a
kubelet since 1.32 (node-monitor-grace-period)."""
assert AGENT_LEASE_EXPIRED_AFTER_S >= 4 * AGENT_LEASE_RENEW_S, "three renewals in a row may fail"
LEASE_KUBE_SCHEDULER: Final = "gpuslice-kube-scheduler"
"""The Lease of kube-scheduler's leader election in our namespace, as the chart configures it. The
extender binds only while the holder is the kube-scheduler of its pod."""
ANNOTATION_READY: Final = "gpuslice.io/ready"
"""Annotation of the agent's Lease: `true`, or the reason why the agent can serve no container."""

LABEL_ADMISSION: Final = "gpuslice.io/admission"
"""Label of an admission policy's binding. `auto`: the scheduler changes its actions from Audit
to Deny once it is available."""
ADMISSION_AUTO: Final = "auto"
LABEL_PART_OF: Final = "app.kubernetes.io/part-of"
PART_OF: Final = "gpuslice"
"""Value of that label on every object of an installation."""

SCHEDULER_NAME: Final = "gpuslice-scheduler"
"""The schedulerName of pods that our scheduler places."""

PLUGIN_NAME: Final = "gpuslice"
"""The name that the node agent registers with NRI, and that pods require."""

CDI_KIND: Final = "nvidia.com/gpu"
"""CDI vendor/class; a GPU's device is `nvidia.com/gpu=UUID`."""
CDI_KINDS: Final = (CDI_KIND, "k8s.device-plugin.nvidia.com/gpu")
"""Kinds with a device for each GPU by its UUID, first nvidia-ctk's, then that of NVIDIA's device
plugin, which GPU Operator installs. The first that has a GPU's device counts."""
CDI_KIND_MANAGEMENT: Final = "management.nvidia.com/gpu"
"""GPU Operator's kind for its own containers: its device has every GPU, without a limit."""

EVENT_GPU_FAILED: Final = "GpuFailed"
"""Event reason: a GPU failed, and the pod has a share of it."""
EVENT_GRANT_REFUSED: Final = "GrantRefused"
"""Event reason: a node's agent refuses the pod's grant."""
EVENT_GRANT_UNCONFIRMED: Final = "GrantUnconfirmed"
"""Event reason, on the node: a container has a share, and the API server has no such pod."""
EVENT_LIMIT_NOT_IN_PLACE: Final = "LimitNotInPlace"
"""Event reason: a running container does not see the files that enforce its limit."""
EVENT_WITHOUT_GPU: Final = "WithoutGPU"
"""Event reason: a container appears to expect a GPU and starts without one."""
EVENT_LIMIT_NOT_ENFORCEABLE: Final = "LimitNotEnforceable"
"""Event reason: the container's entry point does not load preloaded libraries, or a kernel runs for
so long that its share of compute is exceeded."""
EVENT_CAPABILITIES_CUT: Final = "DriverCapabilitiesCut"
"""Event reason: a container requests driver capabilities that the operator does not allow."""

RUNTIME_HANDLERS: Final = (
    *("runc", "crun"),
    *("nvidia", "nvidia-cdi", "nvidia-legacy", "nvidia-experimental", "nvidia-container-runtime"),
)
"""containerd's handlers that run containers on the host's kernel: its own, and NVIDIA's as its
toolkit, k3s and AKS call them."""

# --- environment in the container: what HAMi-core reads ------------------------------------------

ENV_VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
VISIBLE_DEVICES_NONE: Final = "void"
ENV_CUDA_VERSION: Final = "CUDA_VERSION"
ENV_REQUIRED_CUDA: Final = "NVIDIA_REQUIRE_CUDA"
"""An image with the first and without the second is of before NVIDIA_VISIBLE_DEVICES: unless it is
set, NVIDIA's runtime gives such a container all GPUs."""
ENV_DRIVER_CAPABILITIES: Final = "NVIDIA_DRIVER_CAPABILITIES"
"""Parts of the driver that the image or the pod requests; restricted to the operator's list."""
ENV_MEMORY_LIMIT: Final = "CUDA_DEVICE_MEMORY_LIMIT"
"""Bytes. The suffix `_N` selects the container's N-th GPU."""
ENV_CORE_LIMIT: Final = "CUDA_DEVICE_SM_LIMIT"
"""Percent. The suffix `_N` selects the container's N-th GPU."""
ENV_SHARED_CACHE: Final = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
SHARED_CACHE_PATH: Final = "/tmp/cudevshr.cache"
"""HAMi-core's own default, set explicitly, in case that library is mounted instead of ours."""

ENV_LOG_LEVEL: Final = "LIBCUDA_LOG_LEVEL"
"""`0` suppresses the single line that the library may print."""

ENV_CONTEXT: Final = "GPUSLICE_CONTEXT_BYTES"
"""Bytes charged per context, code included, instead of CONTEXT_BYTES_ASSUMED. Used if the limits
come from the variables above; ignored if a grant holds the limits. Format as ENV_MEMORY_LIMIT."""

ENV_DIR: Final = "GPUSLICE_DIR"
"""Directory of `grant` and `region` if `/.gpuslice` does not exist; ignored otherwise."""

# --- paths in the container ----------------------------------------------------------------------

CONTAINER_DIR: Final = "/.gpuslice"
"""At top level, so that root in the container cannot rename its parent directory."""
FILE_LIBRARY: Final = "libvgpu.so"
FILE_GRANT: Final = "grant"
FILE_REGION: Final = "region"
FILE_LEASE: Final = "lease"
FILE_PRELOAD: Final = "preload"
FILE_PRELOAD_NIX: Final = "preload-nix"
CONTAINER_LIBRARY: Final = f"{CONTAINER_DIR}/{FILE_LIBRARY}"
DIR_DRIVER: Final = "driver"
CONTAINER_DRIVER_DIR: Final = f"{CONTAINER_DIR}/{DIR_DRIVER}"
"""In strict mode: the driver's real libraries, under their sonames."""
DRIVER_SONAMES: Final = ("libcuda.so.1", "libnvidia-ml.so.1")
CONTAINER_PRELOAD: Final = "/etc/ld.so.preload"
CONTAINER_PRELOAD_NIX: Final = "/etc/ld-nix.so.preload"
"""The preload file that the loader of Nix' glibc reads instead."""
CONTAINER_PRELOADS: Final = {
    CONTAINER_PRELOAD: FILE_PRELOAD,
    CONTAINER_PRELOAD_NIX: FILE_PRELOAD_NIX,
}
"""Preload file in the container -> our file that is mounted there."""
CONTAINER_LIBRARY_VISIBLE: Final = "/usr/local/vgpu/libvgpu.so"
"""Users of HAMi expect the library here. The same file; nothing depends on it."""

# --- paths on the host ---------------------------------------------------------------------------

DIR_STORE: Final = ".store"
"""In the run directory, a tmpfs: containers mount `<sha256>/libvgpu.so` from here. A published file
never changes."""
HOST_LIBRARY: Final = CONTAINER_LIBRARY_VISIBLE
"""A copy for pods that Koordinator or HAMi serve; the distributor keeps it."""
DEVICE_PLUGIN_SOCKET: Final = "gpuslice-gpu.sock"
"""In the kubelet's directory of device plugins."""
HOST_RUN_DIR: Final = "/run/gpuslice"
"""One directory (its own tmpfs) per container, or per pod if its containers share a grant."""

# --- limits --------------------------------------------------------------------------------------

CONTEXT_BYTES_ASSUMED: Final = 512 << 20
"""Charge for a CUDA context that could not be measured."""

MAX_GPUS: Final = 16
"""GPUs in one grant. HAMi-core has the same limit; no current board carries more. The sizes of the
grant and lease files and the chart's admission policies depend on it."""
ENVIRONMENT_MAX_GPUS: Final = 32
"""GPUs in a region whose limits come from the environment, which does not state their number.
At least MAX_GPUS."""
MAX_SLOTS: Final = 512
"""Processes of one container that may hold the GPU at the same time."""

# --- the arbiter's standard output ---------------------------------------------------------------

HEARTBEAT_S: Final = 0.5
"""Interval of the bytes that an arbiter writes for its parent."""
HEARTBEAT_SERVING: Final = b"s"
HEARTBEAT_WAITING: Final = b"w"
"""Another arbiter serves the directory."""
ARBITER_REPORTS: Final = "gpuslice arbiter: "
"""Beginning of a line on its standard error that states a problem; it continues to serve."""
