"""What the node reports: its Device's GPUs, its capacity's totals, and pods with a failed GPU.

Pure. A restarting kubelet checks running pods against the totals again. If a failed GPU reduced the
totals, the kubelet would reject pods on other GPUs. Therefore a GPU counts while it is offered for
shares, or while a pod holds a share of it. No total is below the sum of the pods' requests.
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
"""Capacity of one GPU in each percentage resource, and the maximum number of its shares."""

GONE: Final = "NVML does not list it"
"""The problem of a GPU that no longer exists."""

_MIB_SHIFT: Final = 20
_IN_MIB: Final = (dialects.VOLCANO_MEMORY, dialects.VOLCANO_VGPU_MEMORY, dialects.HAMI_MEMORY)


@dataclass(frozen=True, slots=True)
class Entry:
    """A GPU of the Device. If it is not healthy, `gpu.problem` states why. Only a healthy GPU in
    mode SHARED gets new shares. why: the cause of another mode. limits: which memory limits are in
    force (memory_limits.py)."""

    gpu: Gpu
    healthy: bool
    mode: Mode = Mode.SHARED
    why: str = ""
    limits: str = ""

    @property
    def offered(self) -> bool:
        return self.healthy and self.mode is Mode.SHARED


def entries(
    seen: Iterable[Gpu],
    before: Iterable[Entry],
    granted: AbstractSet[str],
    reconstructed: Iterable[Gpu] = (),
) -> Sequence[Entry]:
    """Return the Device's desired entries. seen: NVML's GPUs, including failed GPUs. before: the
    current or previous entries. granted: the UUIDs of GPUs of which a share is held or granted.
    reconstructed: the result of `granted_gpus`.

    A failed GPU is listed with its current or last known memory, but at least with the granted
    memory. A GPU that disappeared stays listed as unhealthy while shares of it are granted, because
    the node's totals need its size. A failed GPU of unknown memory is not listed.
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
    # The scheduler reads at most MAX_GPUS. Therefore existing GPUs precede those that are gone.
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
    """Return the totals of the reported resources. requested: the sums of the pods' requests."""
    counted = [entry.gpu for entry in listed if entry.offered or entry.gpu.uuid in granted]
    mib = sum(gpu.memory_bytes >> _MIB_SHIFT for gpu in counted)
    parts = {
        names.RESOURCE_MEMORY: sum(gpu.memory_bytes for gpu in counted),
        **dict.fromkeys(_IN_MIB, mib),
        dialects.VOLCANO_NUMBER: len(counted),
    }
    percent = PERCENT * len(counted)
    return {key: max(parts.get(key, percent), requested.get(key, 0)) for key in reported}


def granted_gpus(
    holds: Iterable[Hold], allocated: Mapping[str, Sequence[allocation.DeviceEntry]]
) -> Sequence[Gpu]:
    """Reconstruct GPUs from their grants, for GPUs that neither NVML nor a Device lists any more.

    A GPU's memory is the sum of what is granted of it. A larger value would be free capacity on a
    GPU that does not exist. A GPU is omitted if its memory is only granted in percent, and no
    container holds it. holds: the holds of running containers. allocated: the pods' allocations by
    UID, also of pods without a running container.
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
    """Yield a notice for each hold of a failed GPU. The container's programs fail, and no other
    report explains why. seen: all of NVML's GPUs, including failed GPUs."""
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
