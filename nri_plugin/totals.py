"""What this node says it has: the GPUs of its Device object, the totals in its capacity, and the
pods that hold a share of a failed GPU.

Pure. The kubelet admits running pods anew when it restarts, against the totals: were they to shrink
with a GPU that fails, tenants on the other GPUs would be thrown out. So a GPU counts while it is
healthy or somebody holds a share of it, and no total is ever below what the node's pods ask for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

from contract import allocation, names
from nri_plugin.ledger import Hold
from nri_plugin.model import Gpu
from nri_plugin.notices import Notice

PERCENT: Final = 100
"""Of one GPU, of each resource that is a part of it; also how many may share one."""

GONE: Final = "NVML does not list it"
"""What is said of a GPU that is no more."""

RESOURCES: Final = (
    names.RESOURCE_GPU,
    names.RESOURCE_CORE,
    names.RESOURCE_MEMORY_RATIO,
    names.RESOURCE_SHARED,
    names.RESOURCE_MEMORY,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A GPU in the Device object; where it is not healthy, its problem says why."""

    gpu: Gpu
    healthy: bool


def entries(
    seen: Iterable[Gpu],
    before: Iterable[Entry],
    granted: AbstractSet[str],
    told: Iterable[Gpu] = (),
) -> Sequence[Entry]:
    """What the Device shall list. seen: as NVML tells, those in trouble too; before: what it lists
    now, or did; granted: the GPUs that somebody holds a share of; told: as the grants tell of them
    (`granted_gpus`).

    A GPU in trouble is listed with the memory that it has or had, and never with less than is
    granted of it. One that is gone is listed, unhealthy, while it is granted: its size is needed to
    give the node totals. One whose memory is not known cannot be written.
    """
    known = {entry.gpu.uuid: entry.gpu for entry in before}
    for gpu in told:
        more = known.setdefault(gpu.uuid, gpu)
        if more.memory_bytes < gpu.memory_bytes:
            known[gpu.uuid] = replace(more, memory_bytes=gpu.memory_bytes)
    found: dict[str, Entry] = {}
    for gpu in seen:
        if not gpu.problem:
            found[gpu.uuid] = Entry(gpu, healthy=True)
        elif gpu.uuid in known or gpu.memory_bytes:
            before_bytes = known[gpu.uuid].memory_bytes if gpu.uuid in known else 0
            memory_bytes = max(gpu.memory_bytes, before_bytes)
            found[gpu.uuid] = Entry(replace(gpu, memory_bytes=memory_bytes), healthy=False)
    # The scheduler reads so many: of GPUs that are no more, none takes the place of one that is.
    gone = [uuid for uuid in known if uuid in granted and uuid not in found]
    for uuid in gone[: max(0, names.MAX_GPUS - len(found))]:
        found[uuid] = Entry(replace(known[uuid], problem=GONE), healthy=False)
    return sorted(found.values(), key=lambda entry: (entry.gpu.minor, entry.gpu.uuid))


def totals(
    listed: Iterable[Entry],
    granted: AbstractSet[str],
    excluded: AbstractSet[str],
    asked: Mapping[str, int],
) -> Mapping[str, int]:
    """By resource. excluded: GPUs that the operator keeps from us. asked: by resource, what all
    pods of the node ask for together."""
    counted = [
        entry.gpu
        for entry in listed
        if entry.gpu.uuid in granted or (entry.healthy and entry.gpu.uuid not in excluded)
    ]
    parts = dict.fromkeys(RESOURCES, PERCENT * len(counted))
    parts[names.RESOURCE_MEMORY] = sum(gpu.memory_bytes for gpu in counted)
    return {key: max(total, asked.get(key, 0)) for key, total in parts.items()}


def granted_gpus(
    holds: Iterable[Hold], allocated: Mapping[str, Sequence[allocation.DeviceEntry]]
) -> Sequence[Gpu]:
    """GPUs as their grants tell of them: all that is known of one that neither NVML nor a Device
    lists any more. holds: of the containers that live. allocated: by UID, what pods were granted,
    also those of which no container lives; a pod's containers hold no more than it was granted.

    The memory is what is granted: the GPU had that much at least, and more would be room on a GPU
    that is not there. A GPU whose share is given in percent alone, and not held, is left out.
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
    """For each pod and failed GPU of which it holds a share: its programs fail, and nothing else
    tells why. What it holds stays counted. seen: all that NVML tells, those in trouble too."""
    gpus = {gpu.uuid: gpu for gpu in seen}
    for hold in holds:
        for uuid in hold.parts:
            gpu = gpus.get(uuid)
            problem = GONE if gpu is None else gpu.problem
            if problem:
                text = (
                    f"{uuid}, of which {hold.whose} has a share, is in trouble: {problem}; its"
                    f" programs fail until the GPU is back; delete the pod to have it placed anew"
                )
                yield Notice(hold.pod, uuid, names.EVENT_GPU_FAILED, text, action="Run")
