"""Names of the wire: a constant each, with what it means. No logic, no I/O.

Kubernetes names are Koordinator's where it has one, so that our pods run under koordlet and its
pods under our node agent. What is our own lives under `gpuslice.io/` and `/.gpuslice`.
"""

from __future__ import annotations

from typing import Final

# --- Kubernetes: what a user writes --------------------------------------------------------------

LABEL_ISOLATION_PROVIDER: Final = "koordinator.sh/gpu-isolation-provider"
"""Pod label: isolation wanted. Its only value is `hami-core`, in any case."""

ISOLATION_PROVIDER: Final = "hami-core"

RESOURCE_GPU: Final = "koordinator.sh/gpu"
RESOURCE_CORE: Final = "koordinator.sh/gpu-core"
"""Percent of one GPU's compute time."""
RESOURCE_MEMORY: Final = "koordinator.sh/gpu-memory"
"""Bytes of one GPU's memory."""
RESOURCE_MEMORY_RATIO: Final = "koordinator.sh/gpu-memory-ratio"
"""Percent of one GPU's memory."""
RESOURCE_SHARED: Final = "koordinator.sh/gpu.shared"
"""Number of GPUs over which the request is spread."""

DEPRECATED_RESOURCES: Final = {
    f"kubernetes.io/{name}": f"koordinator.sh/{name}"
    for name in ("gpu", "gpu-core", "gpu-memory", "gpu-memory-ratio", "rdma", "fpga")
}
"""What Koordinator still reads under the name it had before, in requests, Devices, allocations."""

RESOURCES_WHOLE: Final = ("nvidia.com/gpu", "amd.com/gpu", "dcu.com/gpu")
"""Whole GPUs, which their vendor's device plugin gives, and we do not."""
RESOURCES_KOORDINATOR_ONLY: Final = (
    "koordinator.sh/rdma",
    "koordinator.sh/fpga",
    "huawei.com/npu-core",
    "huawei.com/npu-cpu",
    "huawei.com/npu-dvpp",
)
"""What Koordinator's scheduler allocates, and ours does not."""

ANNOTATION_POLICY: Final = "gpuslice.io/policy"
"""Pod annotation: `binpack` or `spread`, of this pod's shares."""

ANNOTATION_ALLOCATE_HINT: Final = "scheduling.koordinator.sh/device-allocate-hint"
"""Pod annotation: which GPUs will do (Koordinator's JSON)."""
ANNOTATION_JOINT_ALLOCATE: Final = "scheduling.koordinator.sh/device-joint-allocate"
ANNOTATION_PARTITION_SPEC: Final = "scheduling.koordinator.sh/gpu-partition-spec"
LABEL_PARTITION_POLICY: Final = "node.koordinator.sh/gpu-partition-policy"
"""Node label: `Honor` where several whole GPUs of a pod must be a group of the partition table."""

# --- Kubernetes: what the scheduler writes, in the Binding ---------------------------------------

ANNOTATION_DEVICE_ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
"""Pod annotation: the allocation, Koordinator's JSON (see contract.allocation)."""

ANNOTATION_GRANTS: Final = "gpuslice.io/grants"
"""Pod annotation: which container gets how much of which GPU (see contract.grants)."""

ANNOTATION_WRITER: Final = "gpuslice.io/writer"
"""Pod annotation: who bound it, and in which term: the Lease's holderIdentity and leaseTransitions,
with a blank between. A policy of the API server holds the Binding to the Lease by it."""

ANNOTATION_ROOM_SEEN: Final = "gpuslice.io/room-seen"
"""Pod annotation: when room came for a pod that had been refused and was not tried again; setting
it has kube-scheduler try. For people; nobody reads it."""

ANNOTATION_REQUIRED_PLUGINS: Final = "required-plugins.noderesource.dev"
"""What NRI's default validator reads, with a scope behind it (see contract.required_plugins)."""
SCOPE_POD: Final = "/pod"
SCOPE_CONTAINER: Final = "/container."
"""Followed by the container's name; outranks the pod's scope, which outranks the bare key."""

ANNOTATION_TOLERATES_MISSING_AGENT: Final = "gpuslice.io/tolerates-missing-agent"
"""`true`: where the operator requires the agent of every container, this pod runs without it. The
name is what docs/fail-closed.md tells the operator to configure; the validator alone reads it."""

DEVICE_TYPE_GPU: Final = "gpu"
"""Key of the GPU entries in the allocation, type of those in the Device object."""

# --- Kubernetes: what the node says --------------------------------------------------------------

DEVICE_API_VERSION: Final = "scheduling.koordinator.sh/v1alpha1"
DEVICE_KIND: Final = "Device"
DEVICE_PLURAL: Final = "devices"
"""A node's inventory: a cluster-scoped object of the node's name, Koordinator's."""

LABEL_GPU_LINK: Final = "gpuslice.io/link"
"""Label of a GPU in the Device object: GPUs of a node with equal values share an NVLink."""

ANNOTATION_CORDONED_GPUS: Final = "gpuslice.io/cordoned-gpus"
"""Node annotation: UUIDs, comma-separated, of GPUs that take no new share and keep those they
have."""
ANNOTATION_EXCLUDED_GPUS: Final = "gpuslice.io/excluded-gpus"
"""Node annotation: UUIDs, comma-separated, of GPUs that are not ours to give."""

NAMESPACE: Final = "gpuslice-system"
"""Where our own objects live."""
LEASE_AGENT_PREFIX: Final = "agent-"
"""Followed by the node's name: the Lease that the node's agent renews, in our namespace."""
LEASE_SCHEDULER: Final = "gpuslice-scheduler"
"""The Lease, in our namespace, without which nobody of us binds. kube-scheduler's own election has
another one."""
ANNOTATION_ASKED: Final = "gpuslice.io/asked"
"""Annotation of that Lease: who else is asked by its kube-scheduler, and wants to bind."""
ANNOTATION_WAITS: Final = "gpuslice.io/waits"
"""Annotation of that Lease: `true` while the holder has not waited out the one before it."""
ANNOTATION_INSTALLATION: Final = "gpuslice.io/installation"
"""Annotation of that Lease: of which installation the holder is."""
ANNOTATION_READY: Final = "gpuslice.io/ready"
"""Annotation of the agent's Lease: `true`, or why the agent can serve no container."""

SCHEDULER_NAME: Final = "gpuslice-scheduler"
"""What a pod writes into schedulerName to be placed by us."""

PLUGIN_NAME: Final = "gpuslice"
"""The name under which the node agent registers with NRI, and which pods require."""

CDI_KIND: Final = "nvidia.com/gpu"
"""CDI vendor/class; a GPU's device is `nvidia.com/gpu=UUID`."""

EVENT_GPU_FAILED: Final = "GpuFailed"
"""Reason of the event of a pod that has a share of a GPU which is in trouble."""
EVENT_GRANT_REFUSED: Final = "GrantRefused"
"""Reason of the event of a pod whose grant a node's agent refuses, or for which it deletes it."""
EVENT_GRANT_UNCONFIRMED: Final = "GrantUnconfirmed"
"""Reason of the event of a node where a container has a share, and the API server no such pod."""
EVENT_LIMIT_NOT_IN_PLACE: Final = "LimitNotInPlace"
"""Reason of the event for a container that runs, and does not meet what keeps its limit."""
EVENT_WITHOUT_GPU: Final = "WithoutGPU"
"""Reason of the event for a container that seems to expect a GPU, and starts without one."""
EVENT_LIMIT_NOT_ENFORCEABLE: Final = "LimitNotEnforceable"
"""Reason of the event for a container whose entry point no preload reaches."""

ANNOTATION_MIRROR: Final = "kubernetes.io/config.mirror"
"""The kubelet's, of the object that shows a static pod."""

# --- environment in the container: what HAMi-core reads ------------------------------------------

ENV_VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
VISIBLE_DEVICES_NONE: Final = "void"
ENV_DRIVER_CAPABILITIES: Final = "NVIDIA_DRIVER_CAPABILITIES"
"""Parts of the driver that image or pod ask for; held to what the operator allows."""
ENV_MEMORY_LIMIT: Final = "CUDA_DEVICE_MEMORY_LIMIT"
"""Bytes; `_N` behind it for the container's N-th GPU."""
ENV_CORE_LIMIT: Final = "CUDA_DEVICE_SM_LIMIT"
"""Percent; `_N` behind it for the container's N-th GPU."""
ENV_SHARED_CACHE: Final = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
SHARED_CACHE_PATH: Final = "/tmp/cudevshr.cache"
"""HAMi-core's own default, said aloud: its file, should that library be mounted instead of ours."""

ENV_LOG_LEVEL: Final = "LIBCUDA_LOG_LEVEL"
"""`0` silences the one line that the library may print."""

ENV_CONTEXT: Final = "GPUSLICE_CONTEXT_BYTES"
"""Where limits come from the variables above: what each context is charged with its code, instead
of CONTEXT_BYTES_ASSUMED. Bytes, as in ENV_MEMORY_LIMIT; ignored where a grant holds the limits."""

ENV_DIR: Final = "GPUSLICE_DIR"
"""Directory of `grant` and `region` where no `/.gpuslice` exists; ignored where it does."""

# --- paths in the container ----------------------------------------------------------------------

CONTAINER_DIR: Final = "/.gpuslice"
"""Mounted at top level, so that root inside cannot rename its parent away."""
FILE_LIBRARY: Final = "libvgpu.so"
FILE_GRANT: Final = "grant"
FILE_REGION: Final = "region"
FILE_PRELOAD: Final = "preload"
FILE_PRELOAD_NIX: Final = "preload-nix"
CONTAINER_LIBRARY: Final = f"{CONTAINER_DIR}/{FILE_LIBRARY}"
DIR_DRIVER: Final = "driver"
CONTAINER_DRIVER_DIR: Final = f"{CONTAINER_DIR}/{DIR_DRIVER}"
"""In strict mode the driver's real libraries, under their sonames."""
DRIVER_SONAMES: Final = ("libcuda.so.1", "libnvidia-ml.so.1")
CONTAINER_PRELOAD: Final = "/etc/ld.so.preload"
CONTAINER_PRELOAD_NIX: Final = "/etc/ld-nix.so.preload"
"""What the loader of Nix' glibc reads in its place."""
CONTAINER_PRELOADS: Final = {
    CONTAINER_PRELOAD: FILE_PRELOAD,
    CONTAINER_PRELOAD_NIX: FILE_PRELOAD_NIX,
}
"""Each with the file of ours that is mounted there."""
CONTAINER_LIBRARY_VISIBLE: Final = "/usr/local/vgpu/libvgpu.so"
"""Where users of HAMi look for the library; the same file, for the eye only."""

# --- paths on the host ---------------------------------------------------------------------------

HOST_STORE_DIR: Final = "/usr/local/vgpu/store"
"""`<sha256>/libvgpu.so` under it is what containers mount; a published file never changes."""
HOST_RUN_DIR: Final = "/run/gpuslice"
"""One directory (its own tmpfs) per container, or per pod where containers share a grant."""

# --- limits --------------------------------------------------------------------------------------

CONTEXT_BYTES_ASSUMED: Final = 512 << 20
"""What a CUDA context is charged where it could not be measured."""

MAX_GPUS: Final = 16
"""GPUs in one grant; HAMi-core's bound too, and more than any board carries today."""
MOST_GPUS: Final = 32
"""GPUs in a region whose limits come from the environment, where nothing says how many there are.
At least MAX_GPUS."""
MAX_SLOTS: Final = 4096
"""Processes of one container that hold the GPU at one time."""
