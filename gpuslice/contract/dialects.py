"""Request dialects: the names by which pods request shares of GPUs, one table per system. Pure.

`scheduler.dialects` has a reader for each dialect. Three things are derived from these tables: the
admission policies, the resources that kube-scheduler ignores and the agent reports, and the
variables that each dialect's own programs set on pods. Sources: koordinator apis/extension;
KAI-Scheduler pkg/common/constants; Volcano pkg/scheduler/api/devices; HAMi pkg/device/nvidia.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpuslice.contract import names


@dataclass(frozen=True, slots=True)
class Dialect:
    """One system's names.

    name: the dialect's name in the scheduler's option --dialects. switch: the chart value that
    turns the dialect on. scheduler_name: the schedulerName that its pods may name. resources,
    annotations: the keys of requests. container_annotation: prefix and suffixes around a
    container's name in an annotation's key. hints: annotations that only refine a request.
    node_resources: resources that the agent reports in the node's status. webhook_environment:
    variables that the system's webhooks or users set on pods, each as NAME or NAME=VALUE.
    environment: variables that our agent sets in containers with a share, in addition to its own.
    written_annotations: annotations that our scheduler writes in addition to its own.
    own_scheduler: label values and image names that identify pods of the system's own scheduler.
    counted: pairs of a resource and what its amount says of a request, for the count in a queue.
    "gpus" is the number of GPUs. "percent", "mib" and "bytes" are memory, "core" is compute time.
    They are amounts of each GPU, or of all GPUs together if "total" precedes. Of several amounts of
    memory the first counts, as in the dialect's reader.
    """

    name: str
    switch: str
    scheduler_name: str
    resources: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()
    container_annotation: tuple[str, tuple[str, ...]] = ("", ())
    hints: tuple[str, ...] = ()
    node_resources: tuple[str, ...] = ()
    webhook_environment: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    written_annotations: tuple[str, ...] = ()
    own_scheduler: tuple[str, ...] = ()
    counted: tuple[tuple[str, str], ...] = ()


LEAST_MIB: Final = 128
"""The smallest amount of a GPU's memory in every dialect. 128 MiB hold no CUDA context, so a
smaller amount has a wrong unit: 4 meant GiB, or Volcano's memory factor."""

_KOORDINATORS: Final = (
    names.RESOURCE_GPU,
    names.RESOURCE_CORE,
    names.RESOURCE_MEMORY,
    names.RESOURCE_MEMORY_RATIO,
    names.RESOURCE_SHARED,
)
KOORDINATOR: Final = Dialect(
    name="koordinator",
    switch="",
    scheduler_name=names.SCHEDULER_NAME,
    resources=_KOORDINATORS,
    hints=(names.ANNOTATION_ALLOCATE_HINT,),
    node_resources=_KOORDINATORS,
    counted=(
        (names.RESOURCE_SHARED, "gpus"),
        (names.RESOURCE_GPU, "total percent"),
        (names.RESOURCE_MEMORY_RATIO, "total percent"),
        (names.RESOURCE_CORE, "total core"),
        (names.RESOURCE_MEMORY, "total bytes"),
        (names.RESOURCE_NVIDIA_GPU, "gpus"),
    ),
)

# --- KAI -----------------------------------------------------------------------------------------

KAI_FRACTION: Final = "gpu-fraction"
KAI_MEMORY: Final = "gpu-memory"
"""The value is in MiB."""
KAI_DEVICES: Final = "gpu-fraction-num-devices"
KAI_CONTAINER: Final = "gpu-fraction-container-name"
KAI_CONTAINER_TYPE: Final = "gpu-fraction-container-type"
"""KAI before 0.10 reads this annotation. Only the value KAI_INIT_CONTAINER has a meaning."""
KAI_INIT_CONTAINER: Final = "InitContainer"
KAI_MPS: Final = "mps"
KAI_CONTAINER_PREFIX: Final = "nvidia.com/container."
KAI_MEMORY_REQUEST: Final = ".gpu-memory.request"
KAI_MEMORY_LIMIT: Final = ".gpu-memory.limit"
KAI_COMPUTE_MODE: Final = ".gpu-compute.mode"
"""Of NVIDIA's GPU fractioning: how containers of a GPU share its compute."""
KAI_TIME_SLICING: Final = "time-slicing"
KAI_RECEIVED_TYPE: Final = "received-resource-type"
KAI_PORTION: Final = "GPU_PORTION"
KAI_PORTION_OLD: Final = "RUNAI_NUM_OF_GPUS"

KAI: Final = Dialect(
    name="kai",
    switch="global.gpuSharing",
    scheduler_name="kai-scheduler",
    annotations=(KAI_FRACTION, KAI_MEMORY),
    container_annotation=(KAI_CONTAINER_PREFIX, (KAI_MEMORY_REQUEST, KAI_MEMORY_LIMIT)),
    hints=(KAI_DEVICES, KAI_MPS, KAI_CONTAINER, KAI_CONTAINER_TYPE),
    webhook_environment=(names.ENV_VISIBLE_DEVICES, KAI_PORTION, KAI_PORTION_OLD),
    environment=(KAI_PORTION, KAI_PORTION_OLD),
    written_annotations=(KAI_RECEIVED_TYPE,),
    own_scheduler=("kai-scheduler/scheduler", "kai-scheduler-default"),
)

# --- Volcano -------------------------------------------------------------------------------------

VOLCANO_MEMORY: Final = "volcano.sh/gpu-memory"
"""The value is in MiB."""
VOLCANO_NUMBER: Final = "volcano.sh/gpu-number"
VOLCANO_VGPU_NUMBER: Final = "volcano.sh/vgpu-number"
VOLCANO_VGPU_MEMORY: Final = "volcano.sh/vgpu-memory"
"""The value is in MiB."""
VOLCANO_VGPU_PERCENT: Final = "volcano.sh/vgpu-memory-percentage"
VOLCANO_VGPU_CORES: Final = "volcano.sh/vgpu-cores"
VOLCANO_MODE: Final = "volcano.sh/vgpu-mode"
VOLCANO_INDEX: Final = "volcano.sh/gpu-index"
VOLCANO_TIME: Final = "volcano.sh/predicate-time"
"""The value is in nanoseconds since the epoch."""
VOLCANO_ALLOCATED: Final = "VOLCANO_GPU_ALLOCATED"
VOLCANO_TOTAL: Final = "VOLCANO_GPU_MEMORY_TOTAL"

VOLCANO: Final = Dialect(
    name="volcano",
    switch="dialects.volcano.enabled",
    scheduler_name="volcano",
    resources=(
        VOLCANO_MEMORY,
        VOLCANO_NUMBER,
        VOLCANO_VGPU_NUMBER,
        VOLCANO_VGPU_MEMORY,
        VOLCANO_VGPU_PERCENT,
        VOLCANO_VGPU_CORES,
    ),
    node_resources=(
        *(VOLCANO_MEMORY, VOLCANO_NUMBER),
        *(VOLCANO_VGPU_NUMBER, VOLCANO_VGPU_MEMORY, VOLCANO_VGPU_PERCENT, VOLCANO_VGPU_CORES),
    ),
    webhook_environment=(names.ENV_VISIBLE_DEVICES, VOLCANO_ALLOCATED, VOLCANO_TOTAL),
    environment=(VOLCANO_ALLOCATED, VOLCANO_TOTAL),
    written_annotations=(VOLCANO_INDEX, VOLCANO_TIME),
    own_scheduler=("vc-scheduler", "volcano-scheduler"),
    counted=(
        (VOLCANO_NUMBER, "gpus"),
        (VOLCANO_VGPU_NUMBER, "gpus"),
        (VOLCANO_VGPU_PERCENT, "percent"),
        (VOLCANO_MEMORY, "mib"),
        (VOLCANO_VGPU_MEMORY, "mib"),
        (VOLCANO_VGPU_CORES, "core"),
    ),
)

# --- HAMi ----------------------------------------------------------------------------------------

HAMI_GPU: Final = names.RESOURCE_NVIDIA_GPU
HAMI_VGPU: Final = "nvidia.com/vgpu"
"""The usual other name of HAMI_GPU, which is a setting of HAMi's chart."""
HAMI_MEMORY: Final = "nvidia.com/gpumem"
"""The value is in MiB."""
HAMI_MEMORY_PERCENT: Final = "nvidia.com/gpumem-percentage"
HAMI_CORES: Final = "nvidia.com/gpucores"
HAMI_PRIORITY: Final = "nvidia.com/priority"
HAMI_USE_TYPE: Final = "nvidia.com/use-gputype"
HAMI_NO_USE_TYPE: Final = "nvidia.com/nouse-gputype"
HAMI_USE_UUID: Final = "nvidia.com/use-gpuuuid"
HAMI_NO_USE_UUID: Final = "nvidia.com/nouse-gpuuuid"
HAMI_NODE_POLICY: Final = "hami.io/node-scheduler-policy"
HAMI_GPU_POLICY: Final = "hami.io/gpu-scheduler-policy"
HAMI_NUMA_BIND: Final = "nvidia.com/numa-bind"
HAMI_MODE: Final = "nvidia.com/vgpu-mode"
HAMI_UNREAD: Final = ("hami.io/device-scoring-weights", "hami.io/numa-alignment")
"""Annotations of HAMi that gpuslice does not follow. An Event says so."""
HAMI_TASK_PRIORITY: Final = "CUDA_TASK_PRIORITY"
HAMI_CORE_POLICY: Final = "GPU_CORE_UTILIZATION_POLICY"

HAMI: Final = Dialect(
    name="hami",
    switch="dialects.hami.enabled",
    scheduler_name="hami-scheduler",
    resources=(HAMI_GPU, HAMI_VGPU, HAMI_MEMORY, HAMI_MEMORY_PERCENT, HAMI_CORES, HAMI_PRIORITY),
    hints=(
        HAMI_USE_TYPE,
        HAMI_NO_USE_TYPE,
        HAMI_USE_UUID,
        HAMI_NO_USE_UUID,
        HAMI_NODE_POLICY,
        HAMI_GPU_POLICY,
        HAMI_NUMA_BIND,
    ),
    webhook_environment=(
        *(names.ENV_VISIBLE_DEVICES, HAMI_TASK_PRIORITY),
        *(f"{HAMI_CORE_POLICY}={value}" for value in ("default", "force")),
    ),
    own_scheduler=("hami-scheduler",),
    # HAMI_GPU is not reported: other schedulers would place pods with whole GPUs by it.
    node_resources=(HAMI_MEMORY, HAMI_MEMORY_PERCENT, HAMI_CORES),
    counted=(
        (HAMI_GPU, "gpus"),
        (HAMI_VGPU, "gpus"),
        (HAMI_MEMORY, "mib"),
        (HAMI_MEMORY_PERCENT, "percent"),
        (HAMI_CORES, "core"),
    ),
)

MODES: Final = (VOLCANO_MODE, HAMI_MODE)
"""Annotations that select MIG or MPS. They count in the pods of every dialect."""

DIALECTS: Final = (KOORDINATOR, KAI, VOLCANO, HAMI)

SCHEDULER_NAMES: Final = ("koord-scheduler", *(each.scheduler_name for each in DIALECTS))
"""All schedulerNames that gpuslice can serve."""

NODE_RESOURCES: Final = tuple(name for dialect in DIALECTS for name in dialect.node_resources)
"""The resources of all dialects. A node reports those of the dialects that are turned on."""
