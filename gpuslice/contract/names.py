"""Names on the wire: one constant each, with its meaning. No logic, no I/O.

We use Koordinator's names where they exist: koordlet can then serve our pods, and our agent those
of Koordinator's scheduler. Our own names start with `gpuslice.io/` or `/.gpuslice`.
"""

from __future__ import annotations

from typing import Final

# --- Kubernetes: what a user writes --------------------------------------------------------------

LABEL_ISOLATION_PROVIDER: Final = "koordinator.sh/gpu-isolation-provider"
"""Pod label that requests isolation. The only value is `hami-core`, in upper or lower case."""

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
"""Whole NVIDIA GPUs. The node's device plugin allocates them: NVIDIA's plugin, or the agent where
it runs with --whole-gpus."""
RESOURCE_ALIBABA_MEMORY: Final = "aliyun.com/gpu-mem"
RESOURCES_WHOLE: Final = (RESOURCE_NVIDIA_GPU, "amd.com/gpu", "dcu.com/gpu")
"""Whole GPUs. A device plugin allocates them; our scheduler does not."""
RESOURCE_MIG_PREFIX: Final = "nvidia.com/mig-"
RESOURCES_KOORDINATOR_ONLY: Final = (
    "koordinator.sh/rdma",
    "koordinator.sh/fpga",
    "huawei.com/npu-core",
    "huawei.com/npu-cpu",
    "huawei.com/npu-dvpp",
)
"""Resources that Koordinator's scheduler allocates and ours does not."""

ANNOTATION_POLICY: Final = "gpuslice.io/policy"
"""Pod annotation: the placement policy of the pod's shares, `binpack` or `spread`."""

ANNOTATION_COMPUTE: Final = "gpuslice.io/compute"
"""Pod annotation: the compute policy of the pod's shares, a grant_file.Policy."""
ANNOTATION_COMPUTE_PREFIX: Final = f"{ANNOTATION_COMPUTE}."
"""Prefix of the annotation for one container, whose name follows. It overrides the pod's."""

ANNOTATION_ALLOCATE_HINT: Final = "scheduling.koordinator.sh/device-allocate-hint"
"""Pod annotation: which GPUs are acceptable (Koordinator's JSON)."""
ANNOTATION_JOINT_ALLOCATE: Final = "scheduling.koordinator.sh/device-joint-allocate"
ANNOTATION_PARTITION_SPEC: Final = "scheduling.koordinator.sh/gpu-partition-spec"
LABEL_PARTITION_POLICY: Final = "node.koordinator.sh/gpu-partition-policy"
"""Node label. `Honor`: a pod's whole GPUs must be one group of Koordinator's partition table."""

# --- Kubernetes: what the scheduler writes, in the Binding ---------------------------------------

ANNOTATION_DEVICE_ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
"""Pod annotation: the allocation, Koordinator's JSON (allocation.py)."""

ANNOTATION_GRANTS: Final = "gpuslice.io/grants"
"""Pod annotation: which container gets how much of which GPU (grants.py)."""

ANNOTATION_WRITER: Final = "gpuslice.io/writer"
"""Pod annotation: the identity of the kube-scheduler process whose extender bound the pod. An
admission policy compares it with the holder of kube-scheduler's Lease."""

ANNOTATION_REQUEUED_AT: Final = "gpuslice.io/requeued-at"
"""Pod annotation of an unschedulable pod: the time at which capacity for it became free. Setting
the annotation makes kube-scheduler requeue the pod. No program reads the value."""

ANNOTATION_REQUIRED_PLUGINS: Final = "required-plugins.noderesource.dev"
"""Annotation key of NRI's default validator. A scope follows the key (required_plugins.py)."""
SCOPE_POD: Final = "/pod"
SCOPE_CONTAINER: Final = "/container."
"""Scope of one container, whose name follows. It overrides the pod's scope and the bare key."""

ANNOTATION_TOLERATES_MISSING_AGENT: Final = "gpuslice.io/tolerates-missing-agent"
"""`true`: the pod may run without the agent even where the operator requires the agent for every
container. Only NRI's validator reads the key; docs/failures.md says how to configure it."""

# --- queues --------------------------------------------------------------------------------------

RESOURCE_MILLI: Final = "gpuslice.io/gpu-milli"
"""Thousandths of a GPU that a container's share counts in a queue. An admission policy adds it. No
node reports it, and kube-scheduler ignores it."""
LABEL_QUEUES: Final = "gpuslice.io/queues"
"""Label of a namespace. `true`: shares in the namespace count in queues."""
CONFIG_GPU_SIZES: Final = "gpuslice-gpu-sizes"
"""ConfigMap in our namespace. Its key CONFIG_KEY_MIB has the memory sizes of the cluster's GPU
models in MiB, ascending and separated by commas."""
CONFIG_KEY_MIB: Final = "mib"
LABEL_KAI_QUEUE: Final = "kai.scheduler/queue"
LABEL_RUNAI_QUEUE: Final = "runai/queue"
LABEL_KUEUE_QUEUE: Final = "kueue.x-k8s.io/queue-name"
"""Labels that name a pod's queue: KAI's, its older name, and Kueue's."""

DEVICE_TYPE_GPU: Final = "gpu"
"""Key of the GPUs in the allocation, and their type in the Device object."""

# --- Dynamic Resource Allocation ------------------------------------------------------------------

LABEL_FRONT_END: Final = "gpuslice.io/front-end"
"""Node label: how pods request shares of the node's GPUs. Without it the agent's --front-end
applies."""
FRONT_END_ANNOTATIONS: Final = "annotations"
"""The agent publishes a Device, and the extender places pods."""
FRONT_END_CLAIMS: Final = "claims"
"""The agent publishes ResourceSlices, and kube-scheduler allocates ResourceClaims."""
DRA_API_VERSION: Final = "resource.k8s.io/v1"
DRA_DRIVER: Final = "gpuslice.io"
DEVICE_CLASS: Final = "gpuslice.io"
CAPACITY_MEMORY: Final = "memory"
"""Capacity of a device: bytes of the GPU's memory, in steps of CAPACITY_MEMORY_STEP."""
CAPACITY_MEMORY_STEP: Final = 1 << 20
CAPACITY_CORE: Final = "core"
"""Capacity of a device: percent of the GPU's compute time."""
ATTRIBUTE_UUID: Final = "uuid"
ATTRIBUTE_MODEL: Final = "model"
ATTRIBUTE_MINOR: Final = "minor"
"""Attribute of a device: the GPU's number on its node."""
ATTRIBUTE_PCI_ROOT: Final = "resource.kubernetes.io/pcieRoot"
"""Attribute of a device that Kubernetes defines, for devices of several drivers."""
CDI_KIND_CLAIM: Final = "gpuslice.io/claim"
"""CDI kind of a prepared share. Its device `CLAIM_UID-FIRST_8_OF_SHARE_ID` only names the share to
the agent. It mounts CONTAINER_CLAIM."""
CDI_FILE_CLAIM: Final = "gpuslice.io-claim_"
"""Start of the names of the CDI specs with these devices, one for each claim."""
CONTAINER_CLAIM: Final = "/.gpuslice-claim"
"""A mount from this path of the host, which does not exist. The agent replaces the mount. Therefore
a container of a claim cannot start without the agent, and the kubelet retries."""
LABEL_CLAIM_TEMPLATE: Final = "gpuslice.io/claim-template"
"""Label of a pod whose requests an admission policy moved into claims: `true`."""
CLAIM_TEMPLATES: Final = "gpuslice-claim-templates"
"""Name of the Deployment that makes these claims' templates."""
TAINT_UNHEALTHY: Final = "gpuslice.io/unhealthy"
"""Taint of a device whose GPU must not get new shares."""
TAINT_NOT_READY: Final = "gpuslice.io/not-ready"
"""Taint of all devices of a node whose agent can serve no container now."""

# --- Kubernetes: what the node reports -----------------------------------------------------------

DEVICE_API_VERSION: Final = "scheduling.koordinator.sh/v1alpha1"
DEVICE_KIND: Final = "Device"
DEVICE_PLURAL: Final = "devices"
"""A node's inventory: Koordinator's cluster-scoped object with the node's name."""

LABEL_GPU_MODEL: Final = "node.koordinator.sh/gpu-model"
"""Label of a GPU in the Device object: the GPU's name in NVML. Koordinator uses the key on nodes,
but a node may have GPUs of several models."""
LABEL_GPU_LINK: Final = "gpuslice.io/link"
"""Label of a GPU in the Device object. GPUs of a node with equal values are linked by NVLink."""

LABEL_GPU_MEMORY_LIMITS: Final = "gpuslice.io/memory-limits"
"""Label of a GPU in the Device object: `driver` if the driver limits memory beside the library, or
`library`."""

ANNOTATION_CORDONED_GPUS: Final = "gpuslice.io/cordoned-gpus"
"""Node annotation: comma-separated UUIDs of GPUs that get no new shares and keep existing ones."""
ANNOTATION_EXCLUDED_GPUS: Final = "gpuslice.io/excluded-gpus"
"""Node annotation: comma-separated UUIDs of GPUs that gpuslice does not allocate."""

LABEL_DEPLOY_DEVICE_PLUGIN: Final = "nvidia.com/gpu.deploy.device-plugin"
"""Node label of NVIDIA's GPU Operator: `true` where the Operator runs its device plugin. The
Operator sets a missing label, and keeps any value. It removes the label from a node without GPUs,
or where its operands are turned off, and sets the label again later (docs/platforms.md)."""
LABEL_DEPLOY_VALIDATOR: Final = "nvidia.com/gpu.deploy.operator-validator"
"""The same label for the Operator's validator, which fails on a node without nvidia.com/gpu."""

NAMESPACE: Final = "gpuslice-system"
VIEWER: Final = "gpuslice-viewer"
"""The ClusterRole and the Role of users of `gpuslice top`, `ui` and `explain`."""
"""Namespace of our own objects."""
AGENT: Final = "gpuslice-agent"
"""Name of the agent's DaemonSet, value of its pods' label `app.kubernetes.io/name`, and manager of
its writes in managedFields."""
DISTRIBUTOR: Final = "gpuslice-distributor"
UNINSTALLER: Final = "gpuslice-uninstall"
"""Name of the DaemonSet that removes a node's files before the chart is deleted."""
LABEL_NAME: Final = "app.kubernetes.io/name"
LEASE_AGENT_PREFIX: Final = "agent-"
"""Prefix of the Lease, in our namespace, that a node's agent renews. The node's name follows."""
AGENT_LEASE_RENEW_S: Final = 10
"""Interval at which an agent renews its Lease."""
AGENT_LEASE_EXPIRED_AFTER_S: Final = 40
"""Time without a renewal after which the scheduler excludes the node. Kubernetes since 1.32 has the
same timeout for a kubelet (node-monitor-grace-period)."""
assert AGENT_LEASE_EXPIRED_AFTER_S >= 4 * AGENT_LEASE_RENEW_S, "three renewals in a row may fail"
LEASE_KUBE_SCHEDULER: Final = "gpuslice-kube-scheduler"
"""Name of the Lease, in our namespace, of kube-scheduler's leader election. The chart configures
it. An extender binds only while the kube-scheduler of its own pod holds the Lease."""
ANNOTATION_READY: Final = "gpuslice.io/ready"
"""Annotation of the agent's Lease: `true`, or the reason why the agent can serve no container."""

LABEL_ADMISSION: Final = "gpuslice.io/admission"
"""Label of an admission policy's binding. If it is `auto`, the scheduler changes the binding's
actions from Audit to Deny (scheduler/admission.py)."""
ADMISSION_AUTO: Final = "auto"
LABEL_PART_OF: Final = "app.kubernetes.io/part-of"
PART_OF: Final = "gpuslice"
"""Value of LABEL_PART_OF on every object of an installation."""

SCHEDULER_NAME: Final = "gpuslice-scheduler"
"""The schedulerName of pods that our scheduler places."""

PLUGIN_NAME: Final = "gpuslice"
"""The name by which the node agent registers with NRI, and by which pods require the agent."""

CDI_KIND: Final = "nvidia.com/gpu"
"""CDI vendor/class; a GPU's device is `nvidia.com/gpu=UUID`."""
CDI_KINDS: Final = (CDI_KIND, "k8s.device-plugin.nvidia.com/gpu")
"""CDI kinds whose devices are named by the GPUs' UUIDs: nvidia-ctk's, then that of NVIDIA's device
plugin, which GPU Operator installs. The first kind that has a GPU's device is used."""
CDI_KIND_GRANT: Final = "gpuslice.io/grant"
"""CDI kind on a Docker host: a grant's device has the GPU together with its limit."""
LABEL_KEY: Final = "gpuslice.io/key"
"""Label of a Docker container: the key of its grant."""
LABEL_GRANT: Final = "gpuslice.io/grant"
"""Label of a Docker container: its grant (gpuslice/docker/grants.py)."""
CDI_KIND_MANAGEMENT: Final = "management.nvidia.com/gpu"
"""GPU Operator's kind for its own containers. The kind's device gives every GPU without limits."""

EVENT_GPU_FAILED: Final = "GpuFailed"
"""Event reason: a GPU failed, and the pod has a share of it."""
EVENT_GRANT_REFUSED: Final = "GrantRefused"
"""Event reason: a node's agent refuses the pod's grant."""
EVENT_GRANT_UNCONFIRMED: Final = "GrantUnconfirmed"
"""Event reason, on the node: a container has a share, but the API server does not know its pod."""
EVENT_LIMIT_NOT_IN_PLACE: Final = "LimitNotInPlace"
"""Event reason: a running container does not see the files that enforce its limit."""
EVENT_WITHOUT_GPU: Final = "WithoutGPU"
"""Event reason: a container appears to expect a GPU and has none. nri/service.py sends it where it
hides the GPUs of NVIDIA's runtime, containers/lifecycle.py for a label, allocation or variable that
gives no GPU, containers/records.py for a container created while no agent ran."""
EVENT_LIMIT_NOT_ENFORCEABLE: Final = "LimitNotEnforceable"
"""Event reason: the container's entry point does not load preloaded libraries, or a kernel runs for
so long that the container exceeds its share of compute."""
EVENT_LIMIT_BYPASSED: Final = "LimitBypassed"
"""Event reason: from outside, a container is seen to escape its limit (gpu/audit.py)."""
EVENT_DRIVER_LIMIT_NOT_SET: Final = "DriverLimitNotSet"
"""Event reason: the driver's memory limit of a container is not set, only the library's is."""
EVENT_CAPABILITIES_CUT: Final = "DriverCapabilitiesCut"
"""Event reason: a container requests driver capabilities that the operator does not allow."""
EVENT_FRONT_END_WAITS: Final = "FrontEndWaits"
"""Event reason, on the node: its front end changes once nothing holds a GPU of it."""
EVENT_QUEUE_WAITING: Final = "GPUQueueWaiting"
"""Event reason: the pod waits for quota, and the text names queue, limit and use."""
EVENT_QUEUE_UNSERVED: Final = "GPUQueueUnserved"
"""Event reason: the pod names a queue that is missing, has children or is not served."""
EVENT_QUEUE_UNPLACEABLE: Final = "GPUQueueUnplaceable"
"""Event reason: Kueue admitted the pod, and no GPU has had room for it since."""

RUNTIME_HANDLERS: Final = (
    *("runc", "crun"),
    *("nvidia", "nvidia-cdi", "nvidia-legacy", "nvidia-experimental", "nvidia-container-runtime"),
)
"""containerd's runtime handlers that run containers on the host's kernel: containerd's own, then
NVIDIA's by the names that its toolkit, k3s and AKS use."""

# --- environment in the container: what HAMi-core reads ------------------------------------------

ENV_VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
VISIBLE_DEVICES_NONE: Final = "void"
ENV_CUDA_VERSION: Final = "CUDA_VERSION"
ENV_REQUIRED_CUDA: Final = "NVIDIA_REQUIRE_CUDA"
"""An image that sets CUDA_VERSION but not this variable is older than NVIDIA_VISIBLE_DEVICES.
Unless ENV_VISIBLE_DEVICES is set, NVIDIA's runtime gives its containers all GPUs."""
ENV_DRIVER_CAPABILITIES: Final = "NVIDIA_DRIVER_CAPABILITIES"
"""Parts of the driver that an image or pod requests. It gets those on the operator's list."""
ENV_MEMORY_LIMIT: Final = "CUDA_DEVICE_MEMORY_LIMIT"
"""Bytes. The suffix `_N` selects the container's N-th GPU."""
ENV_CORE_LIMIT: Final = "CUDA_DEVICE_SM_LIMIT"
"""Percent. The suffix `_N` selects the container's N-th GPU."""
ENV_SHARED_CACHE: Final = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
SHARED_CACHE_PATH: Final = "/tmp/cudevshr.cache"
"""HAMi-core's default. The agent sets it in case HAMi-core is mounted instead of our library."""

ENV_LOG_LEVEL: Final = "LIBCUDA_LOG_LEVEL"
"""`0` suppresses the single line that the library may print."""

ENV_CONTEXT: Final = "GPUSLICE_CONTEXT_BYTES"
"""Bytes charged per context, code included, instead of CONTEXT_BYTES_ASSUMED. Applies only where
ENV_MEMORY_LIMIT and ENV_CORE_LIMIT set the limits, not a grant. Format: as ENV_MEMORY_LIMIT."""

ENV_DIR: Final = "GPUSLICE_DIR"
"""Directory of the files `grant` and `region`. Ignored if `/.gpuslice` exists."""

# --- paths in the container ----------------------------------------------------------------------

CONTAINER_DIR: Final = "/.gpuslice"
"""A directory at top level, because root in the container could rename a parent directory."""
FILE_LIBRARY: Final = "libvgpu.so"
FILE_GRANT: Final = "grant"
FILE_REGION: Final = "region"
FILE_LEASE: Final = "lease"
FILE_PRELOAD: Final = "preload"
FILE_PRELOAD_NIX: Final = "preload-nix"
CONTAINER_LIBRARY: Final = f"{CONTAINER_DIR}/{FILE_LIBRARY}"
DIR_DRIVER: Final = "driver"
CONTAINER_DRIVER_DIR: Final = f"{CONTAINER_DIR}/{DIR_DRIVER}"
"""Directory of the driver's real libraries in strict mode, named by their sonames."""
DRIVER_SONAMES: Final = ("libcuda.so.1", "libnvidia-ml.so.1")
CONTAINER_PRELOAD: Final = "/etc/ld.so.preload"
CONTAINER_PRELOAD_NIX: Final = "/etc/ld-nix.so.preload"
"""The preload file of Nix' glibc, whose loader does not read CONTAINER_PRELOAD."""
CONTAINER_PRELOADS: Final = {
    CONTAINER_PRELOAD: FILE_PRELOAD,
    CONTAINER_PRELOAD_NIX: FILE_PRELOAD_NIX,
}
"""Path of a preload file in the container -> name of our file that is mounted there."""
CONTAINER_LIBRARY_VISIBLE: Final = "/usr/local/vgpu/libvgpu.so"
"""A second path of the library, where users of HAMi expect it. Nothing else depends on it."""

# --- paths on the host ---------------------------------------------------------------------------

DIR_STORE: Final = ".store"
"""The store, a tmpfs in the run directory. Containers mount `<sha256>/libvgpu.so` from it. A
published file never changes."""
HOST_LIBRARY: Final = CONTAINER_LIBRARY_VISIBLE
"""A copy of the library for pods that Koordinator or HAMi serve. The distributor maintains it."""
DEVICE_PLUGIN_SOCKET: Final = "gpuslice-gpu.sock"
"""Name of the agent's socket in the kubelet's directory of device plugins."""
DOCKER_STATE_DIR: Final = "/var/lib/gpuslice/docker"
"""On a Docker host, the grants by key, and why a container is without its grant."""
SUFFIX_PROBLEM: Final = ".problem"
HOST_RUN_DIR: Final = "/run/gpuslice"
"""The run directory, with one tmpfs per container, or per pod whose containers share a grant."""
BOOKINGS_DIR: Final = "/dev/shm/gpuslice-bookings"
"""What programs and containers hold of this machine's GPUs, without Kubernetes (bookings.py)."""
ENV_BOOKINGS: Final = "GPUSLICE_BOOKINGS"
"""Another directory in the place of BOOKINGS_DIR, for tests."""

# --- limits --------------------------------------------------------------------------------------

CONTEXT_BYTES_ASSUMED: Final = 512 << 20
"""Bytes charged for a CUDA context whose size could not be measured."""

MAX_GPUS: Final = 16
"""Maximum number of GPUs in one grant. HAMi-core has the same limit, and no current board has more
GPUs. The chart's admission policies and the sizes of grant and lease files depend on this."""
ENVIRONMENT_MAX_GPUS: Final = 32
"""Number of GPU records in a region whose limits come from the environment, which does not state
the number of GPUs. At least MAX_GPUS."""
MAX_SLOTS: Final = 512
"""Maximum number of processes of one container that may use GPUs at the same time."""

# --- the arbiter's standard output ---------------------------------------------------------------

HEARTBEAT_S: Final = 0.5
"""Interval at which an arbiter writes a byte for its parent."""
HEARTBEAT_SERVING: Final = b"s"
HEARTBEAT_WAITING: Final = b"w"
"""The byte of an arbiter that waits because another arbiter serves its run directory."""
ARBITER_REPORTS: Final = "gpuslice arbiter: "
"""Prefix of a line on the arbiter's standard error that states a problem. The arbiter runs on."""
