"""What the cluster has granted, and its use: nodes, GPUs, slices, and pods that wait. Pure.

Reads Device objects and pods, and of nodes that serve claims ResourceSlices and ResourceClaims. A
slice is a container's share of one GPU, or a claim's for a pod. The GPU's granted amounts are the
pods' allocations, because containers that run one after another hold their shares in turn.
Parts that cannot be read are left out, and the pod is listed with the reason.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

from gpuslice.cli import claims
from gpuslice.cli.use import Sample, SliceUse
from gpuslice.contract import allocation, grants, names, quantity
from gpuslice.contract.dialects import DIALECTS, SCHEDULER_NAMES
from gpuslice.kube.fields import NOTHING, Json, at, objects, texts

_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e\xa1-\u1fff\u2010-\u2027\u3000-\ud7ff]+")
_RESOURCES: Final = frozenset(name for each in DIALECTS for name in each.resources) | {
    *names.DEPRECATED_RESOURCES
}
_ANNOTATIONS: Final = frozenset(name for each in DIALECTS for name in each.annotations)
_PREEMPTION: Final = re.compile(r",?( no new claims to deallocate,)? preemption: ")
"""What follows is about pods that might be evicted for the pod, node by node."""
_TRANSIENT: Final = frozenset({"ContainerCreating", "PodInitializing"})


@dataclass(slots=True)
class Slice:
    """A container's share of a GPU. container: "" if several containers of the pod share it.
    core_percent: None without a cap. use: None if it is not known. claim: the ResourceClaim that
    has the share, if one has."""

    namespace: str
    pod: str
    container: str
    memory_bytes: int
    core_percent: int | None
    use: SliceUse | None = None
    claim: str = ""


@dataclass(slots=True)
class Gpu:
    """granted_core: the sum in percent, which is reserved and no limit. used_bytes: of containers
    with a share; None if it is not known."""

    uuid: str
    minor: int
    model: str
    memory_bytes: int
    healthy: bool
    granted_bytes: int = 0
    granted_core: int = 0
    used_bytes: float | None = None
    slices: list[Slice] = field(default_factory=list)


@dataclass(slots=True)
class Node:
    """agent: the name of its agent's pod, and the port of the metrics there; None if no such pod
    runs, or if it may not be read."""

    name: str
    gpus: list[Gpu]
    agent: tuple[str, int] | None = None

    @property
    def granted_ratio(self) -> float:
        total = sum(gpu.memory_bytes for gpu in self.gpus)
        return sum(gpu.granted_bytes for gpu in self.gpus) / total if total else 0.0

    def show(self, sample: Sample | None) -> None:
        """Replace the use of the GPUs and slices. None: it is not known. The agent's metrics do not
        tell several claims of a container apart."""
        for gpu in self.gpus:
            gpu.used_bytes = sample.gpus.get(gpu.uuid) if sample else None
            keys = [(each.namespace, each.pod, each.container, gpu.uuid) for each in gpu.slices]
            for key, each in zip(keys, gpu.slices, strict=True):
                each.use = sample.slices.get(key) if sample and keys.count(key) == 1 else None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pod that waits. node: "" if the pod waits for a node."""

    namespace: str
    pod: str
    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """nodes: those with the largest granted part first. waiting: also unreadable annotations."""

    nodes: Sequence[Node]
    waiting: Sequence[Waiting]

    def only(self, nodes: Sequence[str] | None, flag: str = "--node") -> Cluster:
        """Return the cluster with these nodes; all for None. Raises LookupError, which names the
        `flag`."""
        if nodes is None:
            return self
        kept = [node for node in self.nodes if node.name in nodes]
        for name in sorted({*nodes} - {node.name for node in kept}):
            must = "must be a node with a Device object or a ResourceSlice"
            raise LookupError(f"{flag}: invalid value {name}: {must}")
        return Cluster(kept, self.waiting)


def document(cluster: Cluster, notices: Iterable[str]) -> dict[str, Any]:
    """Return the cluster as JSON. Amounts are bytes, and null is unknown."""
    nodes = [{"name": node.name, "gpus": [asdict(g) for g in node.gpus]} for node in cluster.nodes]
    waiting = [asdict(each) for each in cluster.waiting]
    return {"nodes": nodes, "waiting": waiting, "notices": list(notices)}


def read(
    devices: Iterable[Json],
    pods: Iterable[Json],
    slices: Iterable[Json] = (),
    resource_claims: Iterable[Json] = (),
    *,
    namespace: str = "",
) -> Cluster:
    """Return what the pods hold and wait for. Finished pods must not be among them. With a
    namespace, its slices, the GPUs that have them, and its waiting pods. The granted amounts are
    still those of all namespaces."""
    nodes = {node.name: node for node in map(_node, devices)}
    by_device = _published(slices, nodes)
    ours = claims.ours(resource_claims)
    held = defaultdict[tuple[str, str], list[Slice]](list)
    for claim in ours.values():
        for each in _hold_claim(claim, by_device):
            held[each.namespace, each.pod].append(each)
    waiting: list[Waiting] = []
    for pod in pods:
        node = nodes.get(str(at(pod, "spec").get("nodeName") or ""))
        if node is not None:
            node.agent = _agent(pod) or node.agent
            problem = _hold(pod, node)
            reasons = [problem] if problem else _container_reasons(pod, ours)
        else:
            reasons = _unscheduled(pod, ours)
        name = claims.key(pod)
        for each in held[name]:
            each.container = claims.container(pod, each.claim)
        waiting += [Waiting(*name, node.name if node else "", one_line(r)) for r in reasons[:1]]
    ordered = sorted(nodes.values(), key=lambda node: (-node.granted_ratio, node.name))
    waiting.sort(key=lambda each: (each.namespace, each.pod))
    if namespace:
        for node in ordered:
            for gpu in node.gpus:
                gpu.slices = [each for each in gpu.slices if each.namespace == namespace]
            node.gpus = [gpu for gpu in node.gpus if gpu.slices]
        ordered = [node for node in ordered if node.gpus]
        waiting = [each for each in waiting if each.namespace == namespace]
    return Cluster(ordered, waiting)


def container_statuses(pod: Json) -> Sequence[Json]:
    """Return the status of each container, of init containers first."""
    status = at(pod, "status")
    return (*objects(status, "initContainerStatuses"), *objects(status, "containerStatuses"))


def scheduler_message(pod: Json) -> str:
    """Return why kube-scheduler found no node; "" if it has not tried the pod."""
    conditions = objects(at(pod, "status"), "conditions")
    condition = next((each for each in conditions if each.get("type") == "PodScheduled"), NOTHING)
    text = str(condition.get("message") or condition.get("reason") or "")
    return _PREEMPTION.split(text, maxsplit=1)[0]


def waiting_containers(pod: Json) -> Iterator[tuple[str, str]]:
    """Yield the reason of each container that waits, and a text with its name and message."""
    for each in container_statuses(pod):
        if waits := at(at(each, "state"), "waiting"):
            reason = str(waits.get("reason", ""))
            yield reason, f"{each.get('name')}: {reason}: {waits.get('message', '')}".rstrip(": ")


@lru_cache
def one_line(text: str) -> str:
    """Return the text without line breaks and control characters, which a tenant can write."""
    return _UNPRINTABLE.sub(" ", text).strip()


def _node(device: Json) -> Node:
    gpus = []
    for entry in objects(at(device, "spec"), "devices"):
        memory = quantity.parse(at(entry, "resources").get(names.RESOURCE_MEMORY))
        minor = entry.get("minor")
        if entry.get("type") == names.DEVICE_TYPE_GPU and isinstance(memory, quantity.Value):
            uuid, model = entry.get("id", ""), at(entry, "labels").get(names.LABEL_GPU_MODEL, "")
            numbered, healthy = minor if isinstance(minor, int) else 0, entry.get("health") is True
            gpus.append(Gpu(str(uuid), numbered, one_line(str(model)), memory.amount, healthy))
    gpus.sort(key=attrgetter("minor"))
    return Node(str(at(device, "metadata").get("name", "")), gpus)


def _published(slices: Iterable[Json], nodes: dict[str, Node]) -> Mapping[tuple[str, str], Gpu]:
    """Add the nodes that serve claims. Return their GPUs by node and device."""
    found = {}
    for spec in (at(each, "spec") for each in slices):
        if spec.get("driver") != names.DRA_DRIVER:
            continue
        name = str(spec.get("nodeName", ""))
        node = nodes.setdefault(name, Node(name, []))
        for device in objects(spec, "devices"):
            attributes, capacity = at(device, "attributes"), at(device, "capacity")
            memory = quantity.parse(at(capacity, names.CAPACITY_MEMORY).get("value"))
            uuid, model = (
                one_line(str(at(attributes, key).get("string", "")))
                for key in (names.ATTRIBUTE_UUID, names.ATTRIBUTE_MODEL)
            )
            minor = at(attributes, names.ATTRIBUTE_MINOR).get("int")
            taints = {taint.get("key") for taint in objects(device, "taints")}
            if isinstance(memory, quantity.Value):
                minor = minor if isinstance(minor, int) else 0
                gpu = Gpu(uuid, minor, model, memory.amount, names.TAINT_UNHEALTHY not in taints)
                found[name, str(device.get("name"))] = gpu
                node.gpus.append(gpu)
        node.gpus.sort(key=attrgetter("minor"))
    return found


def _agent(pod: Json) -> tuple[str, int] | None:
    """Return the name and port of an agent's pod that runs. None: it is another pod."""
    metadata, running = at(pod, "metadata"), at(pod, "status").get("phase") == "Running"
    if running and texts(metadata, "labels").get(names.LABEL_NAME) == names.AGENT:
        for container in objects(at(pod, "spec"), "containers"):
            for port in objects(container, "ports"):
                if port.get("name") == "http" and isinstance(port.get("containerPort"), int):
                    return str(metadata.get("name", "")), port["containerPort"]
    return None


def _hold_claim(claim: Json, by_device: Mapping[tuple[str, str], Gpu]) -> Iterator[Slice]:
    """Add the claim to its GPUs. Yield, and add, a slice for each pod that has it."""
    namespace, name = claims.key(claim)
    for part in claims.parts(claim):
        if gpu := by_device.get((part.node, part.device)):
            gpu.granted_bytes += part.memory_bytes
            gpu.granted_core += part.core_percent
            share = part.memory_bytes, part.core_percent or None
            for pod in claims.pods(claim):
                gpu.slices.append(Slice(namespace, pod, "", *share, claim=name))
                yield gpu.slices[-1]


def _hold(pod: Json, node: Node) -> str:
    """Add the pod's slices and allocation to its GPUs. Return the problem of its annotations."""
    metadata = at(pod, "metadata")
    annotations = texts(metadata, "annotations")
    key = names.ANNOTATION_DEVICE_ALLOCATED
    try:
        entries = allocation.decode(annotations[key]).gpus if key in annotations else ()
        key = names.ANNOTATION_GRANTS
        granted = grants.decode(annotations[key]) if key in annotations else {}
    except (grants.GrantsError, allocation.AllocationError) as error:
        return f"annotation {key}: {error}"
    gpus, by_minor = ({getattr(g, by): g for g in node.gpus} for by in ("uuid", "minor"))
    found = ((entry, gpus.get(entry.id) or by_minor.get(entry.minor)) for entry in entries)
    held = [(gpu, *_amounts(entry, gpu)) for entry, gpu in found if gpu]
    reserved = {gpu.uuid: core for gpu, _, core in held}
    slices = [
        (gpus[each.id], container, each.memory_bytes, each.core_percent)
        for container, listed in granted.items()
        for each in listed
        if each.id in gpus
    ]
    for gpu, size, core in held or [(gpu, size, core) for gpu, _, size, core in slices]:
        gpu.granted_bytes += size
        gpu.granted_core += core
    name = claims.key(pod)
    for gpu, container, size, core in slices or [(gpu, "", size, core) for gpu, size, core in held]:
        # 100 percent beside a smaller allocation is a limit that limits nothing.
        is_cap = 0 < core <= max(reserved.get(gpu.uuid, 100), 99)
        gpu.slices.append(Slice(*name, container, size, core if is_cap else None))
    return ""


def _amounts(entry: allocation.DeviceEntry, gpu: Gpu) -> tuple[int, int]:
    ratio = quantity.share_of(gpu.memory_bytes, entry.resources.get(names.RESOURCE_MEMORY_RATIO, 0))
    memory = entry.resources.get(names.RESOURCE_MEMORY, ratio)
    return memory, entry.resources.get(names.RESOURCE_CORE, 0)


def _claims(pod: Json, ours: Container[tuple[str, str]]) -> bool:
    """Whether the pod has claims of our GPUs, or waits for the template of one."""
    namespace, _ = claims.key(pod)
    return names.LABEL_CLAIM_TEMPLATE in at(at(pod, "metadata"), "labels") or any(
        (namespace, name) in ours for name in claims.named(pod).values()
    )


def _unscheduled(pod: Json, ours: Container[tuple[str, str]]) -> Sequence[str]:
    """Return why the pod waits for a node; nothing if it has one or requests no share."""
    spec = at(pod, "spec")
    if spec.get("nodeName"):
        return ()
    if _claims(pod, ours):
        return (scheduler_message(pod) or "waits for kube-scheduler, or for its claims",)
    if spec.get("schedulerName") not in SCHEDULER_NAMES:
        return ()
    containers = (*objects(spec, "initContainers"), *objects(spec, "containers"))
    given = (at(each, "resources") for each in containers)
    requested = {key for each in given for key in (*at(each, "limits"), *at(each, "requests"))}
    annotations = at(at(pod, "metadata"), "annotations")
    if not requested & _RESOURCES and not annotations.keys() & _ANNOTATIONS:
        return ()
    return (scheduler_message(pod) or "kube-scheduler has not tried the pod yet",)


def _container_reasons(pod: Json, ours: Container[tuple[str, str]]) -> Sequence[str]:
    """Return why containers of a pod with a share do not start, for example the agent's refusal."""
    annotations = at(at(pod, "metadata"), "annotations")
    if names.ANNOTATION_DEVICE_ALLOCATED not in annotations and not _claims(pod, ours):
        return ()
    waits = waiting_containers(pod)
    return [text for reason, text in waits if reason and reason not in _TRANSIENT]
