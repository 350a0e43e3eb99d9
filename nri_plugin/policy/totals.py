"""This node's reports: the GPUs of its Device object, the totals in its capacity, and the pods
that hold a share of a failed GPU.

Pure. When the kubelet restarts, it admits running pods again, against the totals. If a failed GPU
reduced them, the kubelet would reject pods on other GPUs. Therefore a GPU counts while it is
offered for shares or a pod holds a share of it, and no total is ever below the sum of the node's
pods' requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

from gpuslice.contract import allocation, dialects, names
from nri_plugin.policy.gpu_modes import Mode
from nri_plugin.policy.ledger import Hold
from nri_plugin.policy.model import Gpu
from nri_plugin.policy.notices import Notice

PERCENT: Final = 100
"""Capacity of one GPU in each percentage resource; also the maximum number of shares of one GPU."""

GONE: Final = "NVML does not list it"
"""Problem of a GPU that no longer exists."""

_MIB_SHIFT: Final = 20


@dataclass(frozen=True, slots=True)
class Entry:
    """A GPU in the Device object; if it is not healthy, its problem is the reason. Only a healthy
    GPU in mode SHARED gets new shares. why: the cause of another mode."""

    gpu: Gpu
    healthy: bool
    mode: Mode = Mode.SHARED
    why: str = ""

    @property
    def offered(self) -> bool:
        return self.healthy and self.mode is Mode.SHARED


def entries(
    seen: Iterable[Gpu],
    before: Iterable[Entry],
    granted: AbstractSet[str],
    reconstructed: Iterable[Gpu] = (),
) -> Sequence[Entry]:
    """Return the Device's desired entries. seen: NVML's GPUs, failed ones too. before: the current
    or previous entries. granted: the GPUs of which a share is held. reconstructed: GPUs as
    grants describe them (`granted_gpus`).

    A failed GPU is listed with its current or last known memory, and never with less than is
    granted of it. A GPU that disappeared stays listed as unhealthy while it is granted, because the
    node's totals need its size. A GPU of unknown memory cannot be listed.
    """
    known = {entry.gpu.uuid: entry.gpu for entry in before}
    for gpu in reconstructed:
        more = known.setdefault(gpu.uuid, gpu)
        if more.memory_bytes < gpu.memory_bytes:
            known[gpu.uuid] = replace(more, memory_bytes=gpu.memory_bytes)
    by_uuid: dict[str, Entry] = {}
    for gpu in seen:
        if not gpu.problem:
            by_uuid[gpu.uuid] = Entry(gpu, healthy=True)
        elif gpu.uuid in known or gpu.memory_bytes:
            before_bytes = known[gpu.uuid].memory_bytes if gpu.uuid in known else 0
            memory_bytes = max(gpu.memory_bytes, before_bytes)
            by_uuid[gpu.uuid] = Entry(replace(gpu, memory_bytes=memory_bytes), healthy=False)
    # The scheduler reads at most MAX_GPUS; a GPU that is gone must not displace an existing one.
    gone = [uuid for uuid in known if uuid in granted and uuid not in by_uuid]
    for uuid in gone[: max(0, names.MAX_GPUS - len(by_uuid))]:
        by_uuid[uuid] = Entry(replace(known[uuid], problem=GONE), healthy=False)
    return sorted(by_uuid.values(), key=lambda entry: (entry.gpu.minor, entry.gpu.uuid))


def totals(
    listed: Iterable[Entry],
    granted: AbstractSet[str],
    requested: Mapping[str, int],
    reported: Sequence[str] = dialects.KOORDINATOR.node_resources,
) -> Mapping[str, int]:
    """Return the totals of the reported resources. requested: the sum of the requests of the node's
    pods, by resource."""
    counted = [entry.gpu for entry in listed if entry.offered or entry.gpu.uuid in granted]
    parts = {
        names.RESOURCE_MEMORY: sum(gpu.memory_bytes for gpu in counted),
        dialects.VOLCANO_MEMORY: sum(gpu.memory_bytes >> _MIB_SHIFT for gpu in counted),
        dialects.VOLCANO_NUMBER: len(counted),
    }
    percent = PERCENT * len(counted)
    return {key: max(parts.get(key, percent), requested.get(key, 0)) for key in reported}


def granted_gpus(
    holds: Iterable[Hold], allocated: Mapping[str, Sequence[allocation.DeviceEntry]]
) -> Sequence[Gpu]:
    """Return GPUs as described by their grants, which is all that is known of one that neither NVML
    nor a Device lists any more. holds: of running containers. allocated: allocations by UID, also
    of pods without a running container; a pod's containers hold no more than its allocation.

    The memory is the granted amount: the GPU had at least that much, and more would be free
    capacity on a GPU that does not exist. A GPU whose share is only in percent, and not held, is
    omitted.
    """
    minors: dict[str, int] = {}
    of_pods: Counter[tuple[str, str]] = Counter()
    for hold in {hold.key: hold for hold in holds}.values():
        for uuid, minor in hold.minors.items():
            minors.setdefault(uuid, minor)
            of_pods[uuid, hold.pod_uid] += hold.parts[uuid].memory_bytes
    for pod_uid, listed in allocated.items():
        for entry in listed:
            if entry.id is not None:
                minors.setdefault(entry.id, entry.minor)
                memory_bytes = entry.resources.get(names.RESOURCE_MEMORY, 0)
                of_pods[entry.id, pod_uid] = max(of_pods[entry.id, pod_uid], memory_bytes)
    total: Counter[str] = Counter()
    for (uuid, _), memory_bytes in of_pods.items():
        total[uuid] += memory_bytes
    return [Gpu(uuid, minors[uuid], each) for uuid, each in total.items() if each]


def failed_gpu_notices(holds: Iterable[Hold], seen: Sequence[Gpu]) -> Iterator[Notice]:
    """Yield a notice for each pod and failed GPU of which it holds a share: its programs fail, and
    nothing else reports why. Its hold still counts. seen: all of NVML's GPUs, failed ones too."""
    gpus = {gpu.uuid: gpu for gpu in seen}
    for hold in holds:
        for uuid in hold.parts:
            gpu = gpus.get(uuid)
            problem = GONE if gpu is None else gpu.problem
            if problem:
                text = (
                    f"{uuid}, used by {hold.container_key}, is unhealthy: {problem}; its"
                    f" programs fail until the GPU is back; delete the pod to reschedule it"
                )
                yield Notice(hold.pod, uuid, names.EVENT_GPU_FAILED, text, action="Run")
