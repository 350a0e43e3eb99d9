"""What the cluster has granted: nodes, GPUs, slices, and pods that wait. Pure.

Reads Device objects and pods. A slice is a container's share of one GPU. The GPU's granted amounts
are the pods' allocations, because containers that run one after another hold their shares in turn.
Parts that cannot be read are left out, and the pod is listed with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuslice.contract import allocation, grants, names, quantity
from gpuslice.contract.dialects import DIALECTS, SCHEDULER_NAMES
from gpuslice.kube.fields import Json, at, objects, texts

LIVE_PODS: Final = "status.phase!=Succeeded,status.phase!=Failed"
"""The field selector of pods that hold or want a share."""

_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e\xa1-\u1fff\u2010-\u2027\u3000-\ud7ff]+")
_RESOURCES: Final = frozenset(name for each in DIALECTS for name in each.resources) | {
    *names.DEPRECATED_RESOURCES
}
_ANNOTATIONS: Final = frozenset(name for each in DIALECTS for name in each.annotations)
_TRANSIENT: Final = frozenset({"ContainerCreating", "PodInitializing"})


@dataclass(frozen=True, slots=True)
class Slice:
    """A container's share of a GPU. container: "" if the pod's containers share one grant.
    core_percent: None without a cap."""

    namespace: str
    pod: str
    container: str
    memory_bytes: int
    core_percent: int | None

    def key(self, gpu: Gpu) -> tuple[str, str, str, str]:
        """Return the labels by which the agent's metrics identify the slice."""
        return self.namespace, self.pod, self.container, gpu.uuid


@dataclass(slots=True)
class Gpu:
    """A GPU. granted_core: the sum in percent, which is only reserved, not a limit."""

    uuid: str
    minor: int
    model: str
    memory_bytes: int
    healthy: bool
    granted_bytes: int = 0
    granted_core: int = 0
    slices: list[Slice] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Agent:
    """The pod of a node's agent. port: of its metrics, on 127.0.0.1 or another address."""

    pod: str
    port: int


@dataclass(slots=True)
class Node:
    """A node with GPUs. agent: None if no agent's pod runs there, or if it may not be read."""

    name: str
    gpus: list[Gpu]
    agent: Agent | None = None

    @property
    def granted_ratio(self) -> float:
        total = sum(gpu.memory_bytes for gpu in self.gpus)
        return sum(gpu.granted_bytes for gpu in self.gpus) / total if total else 0.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pod that waits. node: "" if the pod waits for a node."""

    namespace: str
    pod: str
    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """nodes: those with the largest granted part first. problems: of annotations, as Waiting."""

    nodes: Sequence[Node]
    waiting: Sequence[Waiting]

    def only(self, nodes: Sequence[str] | None) -> Cluster:
        """Return the cluster with these nodes; all for None. Raises LookupError."""
        if nodes is None:
            return self
        kept = [node for node in self.nodes if node.name in nodes]
        for name in sorted({*nodes} - {node.name for node in kept}):
            raise LookupError(f"--node: invalid value {name}: must be a node with a Device object")
        return Cluster(kept, self.waiting)


def read(devices: Iterable[Json], pods: Iterable[Json]) -> Cluster:
    """Return what the pods hold and wait for. Finished pods must not be among them."""
    nodes = {node.name: node for node in map(_node, devices)}
    by_uuid = {gpu.uuid: gpu for node in nodes.values() for gpu in node.gpus}
    waiting: list[Waiting] = []
    for pod in pods:
        node = nodes.get(str(at(pod, "spec").get("nodeName") or ""))
        if node is not None:
            by_minor = {gpu.minor: gpu for gpu in node.gpus}
            problem = _hold(pod, by_uuid, by_minor)
            reasons = [problem] if problem else _container_reasons(pod)
        else:
            reasons = _unscheduled(pod)
        metadata = at(pod, "metadata")
        name = str(metadata.get("namespace", "")), str(metadata.get("name", ""))
        waiting += [Waiting(*name, node.name if node else "", one_line(r)) for r in reasons[:1]]
    ordered = sorted(nodes.values(), key=lambda node: (-node.granted_ratio, node.name))
    return Cluster(ordered, sorted(waiting, key=lambda each: (each.namespace, each.pod)))


def of_namespace(cluster: Cluster, namespace: str) -> Cluster:
    """Return the cluster with this namespace's slices and waiting pods, and the GPUs that have
    them. The granted amounts are still those of all namespaces."""
    nodes = []
    for node in cluster.nodes:
        gpus = []
        for gpu in node.gpus:
            if slices := [each for each in gpu.slices if each.namespace == namespace]:
                kept = (gpu.uuid, gpu.minor, gpu.model, gpu.memory_bytes, gpu.healthy)
                gpus.append(Gpu(*kept, gpu.granted_bytes, gpu.granted_core, slices))
        if gpus:
            nodes.append(Node(node.name, gpus, node.agent))
    return Cluster(nodes, [each for each in cluster.waiting if each.namespace == namespace])


def agents(pods: Iterable[Json]) -> Mapping[str, Agent]:
    """Return the running agents by node."""
    found = {}
    for pod in pods:
        metadata, spec = at(pod, "metadata"), at(pod, "spec")
        labelled = texts(metadata, "labels").get(names.LABEL_NAME) == names.AGENT
        if not labelled or at(pod, "status").get("phase") != "Running":
            continue
        for container in objects(spec, "containers"):
            for port in objects(container, "ports"):
                if port.get("name") == "http" and isinstance(port.get("containerPort"), int):
                    agent = Agent(str(metadata.get("name", "")), port["containerPort"])
                    found[str(spec.get("nodeName", ""))] = agent
    return found


def one_line(text: str) -> str:
    """Return the text without line breaks and control characters, which a tenant can write."""
    return _UNPRINTABLE.sub(" ", text).strip()


def _node(device: Json) -> Node:
    gpus = []
    for entry in objects(at(device, "spec"), "devices"):
        resources = at(entry, "resources")
        memory = quantity.parse(resources.get(names.RESOURCE_MEMORY))
        minor = entry.get("minor")
        if entry.get("type") == names.DEVICE_TYPE_GPU and isinstance(memory, quantity.Value):
            model = texts(entry, "labels").get(names.LABEL_GPU_MODEL, "")
            numbered = minor if isinstance(minor, int) else 0
            healthy = entry.get("health") is True
            uuid = str(entry.get("id", ""))
            gpus.append(Gpu(uuid, numbered, one_line(model), memory.amount, healthy))
    gpus.sort(key=lambda gpu: gpu.minor)
    return Node(str(at(device, "metadata").get("name", "")), gpus)


def _hold(pod: Json, by_uuid: Mapping[str, Gpu], by_minor: Mapping[int, Gpu]) -> str:
    """Add the pod's slices and allocation to its GPUs. Return the problem of its annotations."""
    metadata = at(pod, "metadata")
    annotations = texts(metadata, "annotations")
    written = annotations.get(names.ANNOTATION_GRANTS)
    allocated = annotations.get(names.ANNOTATION_DEVICE_ALLOCATED)
    if written is None and allocated is None:
        return ""
    key = names.ANNOTATION_DEVICE_ALLOCATED
    slices: list[tuple[Gpu, str, int, int | None]] = []
    held: list[tuple[Gpu, int, int]] = []
    try:
        held = [
            (gpu, *_amounts(entry, gpu))
            for entry in (allocation.decode(allocated).gpus if allocated is not None else ())
            if (gpu := by_uuid.get(entry.id or "") or by_minor.get(entry.minor))
        ]
        reserved = {gpu.uuid: core for gpu, _, core in held}
        key = names.ANNOTATION_GRANTS
        for container, gpus in grants.decode(written).items() if written is not None else ():
            for each in gpus:
                if gpu := by_uuid.get(each.id):
                    # 100 percent beside a smaller allocation is a limit that limits nothing.
                    is_cap = 0 < each.core_percent <= max(reserved.get(gpu.uuid, 100), 99)
                    core = each.core_percent if is_cap else None
                    slices.append((gpu, container, each.memory_bytes, core))
    except (grants.GrantsError, allocation.AllocationError) as error:
        return f"annotation {key}: {error}"
    for gpu, size, core in held or [(g, size, core or 0) for g, _, size, core in slices]:
        gpu.granted_bytes += size
        gpu.granted_core += core
    name = str(metadata.get("namespace", "")), str(metadata.get("name", ""))
    for gpu, container, size, cap in slices or [(g, "", size, c or None) for g, size, c in held]:
        gpu.slices.append(Slice(*name, container, size, cap))
    return ""


def _amounts(entry: allocation.DeviceEntry, gpu: Gpu) -> tuple[int, int]:
    ratio = quantity.share_of(gpu.memory_bytes, entry.resources.get(names.RESOURCE_MEMORY_RATIO, 0))
    memory = entry.resources.get(names.RESOURCE_MEMORY, ratio)
    return memory, entry.resources.get(names.RESOURCE_CORE, 0)


def _unscheduled(pod: Json) -> Sequence[str]:
    """Return why the pod waits for a node; nothing if it has one or requests no share."""
    spec = at(pod, "spec")
    if spec.get("nodeName") or spec.get("schedulerName") not in SCHEDULER_NAMES:
        return ()
    requested = {key for each in _containers(spec) for key in each}
    annotated = _ANNOTATIONS & texts(at(pod, "metadata"), "annotations").keys()
    if not annotated and not requested & _RESOURCES:
        return ()
    for condition in objects(at(pod, "status"), "conditions"):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return (str(condition.get("message") or condition.get("reason")),)
    return ("kube-scheduler has not tried the pod yet",)


def _containers(spec: Json) -> Iterator[Iterable[str]]:
    for key in ("initContainers", "containers"):
        for container in objects(spec, key):
            yield from (at(at(container, "resources"), part) for part in ("limits", "requests"))


def _container_reasons(pod: Json) -> Sequence[str]:
    """Return why containers of a pod with a share do not start, for example the agent's refusal."""
    if names.ANNOTATION_DEVICE_ALLOCATED not in at(at(pod, "metadata"), "annotations"):
        return ()
    found = []
    for key in ("initContainerStatuses", "containerStatuses"):
        for container in objects(at(pod, "status"), key):
            waits = at(at(container, "state"), "waiting")
            reason = str(waits.get("reason", ""))
            if reason and reason not in _TRANSIENT:
                text = f"{container.get('name')}: {reason}: {waits.get('message', '')}"
                found.append(text.rstrip(": "))
    return found
