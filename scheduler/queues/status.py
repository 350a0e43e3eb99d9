"""What is shown about queues: a Queue's status, and Events about pods. Pure.

Kueue's Workloads say what is requested and what is admitted. Pods say which of them no GPU has room
for: Kueue counts sums, and free parts of different GPUs do not add up. Amounts are in thousandths.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from gpuslice.contract import names, quantity
from gpuslice.kube.fields import Json, at, objects, texts
from scheduler.queues.kueue import Share, gpus, scaled_text
from scheduler.queues.tree import MILLI, Finding, Tree

READY: Final = "Ready"
"""The type of our condition on a Queue."""
GATE: Final = "kueue.x-k8s.io/admission"
UNPLACED_S: Final = 60.0
"""The time after admission from which a pod without a node counts as unplaceable."""
WAITED_S: Final = 3.0
"""The time at the gate after which an Event says what a pod waits for."""
_ENDED: Final = ("Succeeded", "Failed")
_LABELS: Final = (names.LABEL_KAI_QUEUE, names.LABEL_RUNAI_QUEUE)
_SHOWN: Final = 3

Locals = Mapping[tuple[str, str], str]
"""The ClusterQueue of each LocalQueue, by namespace and name."""


class Work(NamedTuple):
    """A Workload that has not finished. queue: its LocalQueue."""

    namespace: str
    queue: str
    milli: int
    is_admitted: bool


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod with Kueue's label that has not ended. label: the key of the label that its author
    wrote. since_s: when it was first seen at Kueue's gate, or first without the gate."""

    uid: str
    namespace: str
    name: str
    queue: str
    label: str
    milli: int
    is_gated: bool
    is_bound: bool
    since_s: float = 0.0


@dataclass(slots=True)
class Use:
    """What a queue and all below it use. waiting, unplaceable: numbers of pods. strays: pods that
    name the queue although it has children."""

    allocated: int = 0
    requested: int = 0
    waiting: int = 0
    unplaceable: int = 0
    strays: list[str] = field(default_factory=list)


class PodEvent(NamedTuple):
    reason: str
    pod: Pod
    text: str


# --- reading


def work(raw: Json) -> Work | None:
    """Read a Workload; None if it has finished."""
    spec, conditions = at(raw, "spec"), objects(at(raw, "status"), "conditions")
    met = {each.get("type") for each in conditions if each.get("status") == "True"}
    if "Finished" in met:
        return None
    milli = sum(
        int(each.get("count") or 1) * milli_of(at(at(each, "template"), "spec"))
        for each in objects(spec, "podSets")
    )
    namespace, queue = at(raw, "metadata").get("namespace"), spec.get("queueName")
    return Work(str(namespace), str(queue), milli, "Admitted" in met)


def pod(raw: Json, since_s: float = 0.0) -> Pod | None:
    """Read a pod; None if it has ended or is being deleted."""
    metadata, spec = at(raw, "metadata"), at(raw, "spec")
    if "deletionTimestamp" in metadata or at(raw, "status").get("phase") in _ENDED:
        return None
    labels, gates = texts(metadata, "labels"), objects(spec, "schedulingGates")
    queue = labels.get(names.LABEL_KUEUE_QUEUE, "")
    return Pod(
        uid=str(metadata.get("uid")),
        namespace=str(metadata.get("namespace")),
        name=str(metadata.get("name")),
        queue=queue,
        label=next((k for k in _LABELS if labels.get(k) == queue), names.LABEL_KUEUE_QUEUE),
        milli=milli_of(spec),
        is_gated=any(gate.get("name") == GATE for gate in gates),
        is_bound=bool(spec.get("nodeName")),
        since_s=since_s,
    )


def milli_of(spec: Json) -> int:
    """Return what a pod's containers request together, or an init container if that is more."""
    main = sum(map(_requested, objects(spec, "containers")))
    return max((main, *map(_requested, objects(spec, "initContainers"))))


def _requested(container: Json) -> int:
    read = quantity.parse(at(at(container, "resources"), "requests").get(names.RESOURCE_MILLI))
    return read.amount if isinstance(read, quantity.Value) else 0


# --- use


def uses(
    tree: Tree, works: Iterable[Work], pods: Iterable[Pod], local: Locals, now_s: float
) -> Mapping[str, Use]:
    """Return the use of each served queue. pods: in namespaces with queues."""
    found = {queue.name: Use() for queue in tree.served()}

    def path(leaf: str) -> Iterator[Use]:
        return (found[each.name] for each in (tree.path(leaf) if tree.is_leaf(leaf) else ()))

    for each in works:
        for use in path(local.get((each.namespace, each.queue), "")):
            use.requested += each.milli
            use.allocated += each.milli * each.is_admitted
            use.waiting += not each.is_admitted
    for one in pods:
        name = local.get((one.namespace, one.queue), one.queue)
        if name in tree.children and name in found:
            found[name].strays.append(f"{one.namespace}/{one.name}")
        elif is_unplaceable(one, now_s):
            for use in path(name):
                use.unplaceable += 1
    return found


def is_unplaceable(one: Pod, now_s: float) -> bool:
    return not one.is_gated and not one.is_bound and now_s - one.since_s >= UNPLACED_S


# --- the Queue's status


def condition(
    tree: Tree,
    name: str,
    shared: Mapping[str, Share],
    found: Mapping[str, Use],
    fault: Finding | None,
) -> Json:
    """Return the condition of the queue. fault: why the queue is not served; None if it is."""
    queue = tree.queues[name]
    notes = [*queue.notes]
    if not fault and shared[name].scaled:
        notes.insert(0, Finding("QuotaScaled", scaled_text(queue, shared[name])))
    if not fault and (strays := found[name].strays):
        some = ", ".join(sorted(strays)[:_SHOWN])
        text = f"the queue has children and runs no pods, but {len(strays)} name it: {some}"
        notes.insert(0, Finding("PodsInInnerQueue", text))
    said = [fault] if fault else notes or [Finding("Served", "Kueue serves the queue")]
    is_true = "False" if fault else "True"
    message = "; ".join(each.message for each in said)
    return {"type": READY, "status": is_true, "reason": said[0].reason, "message": message}


def status(raw: Json, tree: Tree, use: Use | None, condition: Json, now: str) -> Json | None:
    """Return the new status of the Queue `raw`, or None if it is as it should be. use: None leaves
    the amounts as they are. now: the time of a change of the condition."""
    before = at(raw, "status")
    there = {each.get("type"): each for each in objects(before, "conditions")}
    old = there.get(READY, {})
    changed = now if old.get("status") != condition["status"] else old.get("lastTransitionTime")
    there[READY] = {**condition, "lastTransitionTime": changed}
    after: dict[str, Any] = {"conditions": [*there.values()]}
    if use is not None:
        name = str(at(raw, "metadata").get("name"))
        after["childQueues"] = [*tree.children.get(name, ())]
        after["allocated"] = {names.RESOURCE_NVIDIA_GPU: as_quantity(use.allocated)}
        after["requested"] = {names.RESOURCE_NVIDIA_GPU: as_quantity(use.requested)}
    return None if after.items() <= {**before}.items() else after


def as_quantity(milli: int) -> str:
    """Return the amount in GPUs, as Kubernetes writes it."""
    return f"{milli}m" if milli % MILLI else str(milli // MILLI)


# --- Events


def events(
    tree: Tree,
    shared: Mapping[str, Share],
    found: Mapping[str, Use],
    pods: Iterable[Pod],
    local: Locals,
    capacity: int,
    now_s: float,
) -> Iterator[PodEvent]:
    """Yield what the authors of pods must know. A pod of another's LocalQueue is not judged."""
    for each in pods:
        name = local.get((each.namespace, each.queue), each.queue)
        if is_unplaceable(each, now_s):
            yield PodEvent(names.EVENT_QUEUE_UNPLACEABLE, each, _unplaceable(each, name))
        elif not each.is_gated:
            continue
        elif tree.is_leaf(name):
            if now_s - each.since_s >= WAITED_S:
                text = _waiting(tree, shared, found, name, each.milli, capacity)
                yield PodEvent(names.EVENT_QUEUE_WAITING, each, text)
        elif name in tree.queues or (each.namespace, each.queue) not in local:
            yield PodEvent(names.EVENT_QUEUE_UNSERVED, each, _unserved(tree, each.label, name))


def _unserved(tree: Tree, label: str, name: str) -> str:
    """Return why a pod in an inner, faulty or missing queue waits."""
    written = f"metadata.labels[{label}]: invalid value {name}: must be"
    if fault := tree.faults.get(name):
        return f"{written} a Queue that is served; {fault.message}"
    if below := tree.children.get(name):
        return f"{written} a Queue without children; it has {', '.join(below[:_SHOWN])}"
    return f"{written} the name of a Queue; there is none of this name"


def _waiting(
    tree: Tree,
    shared: Mapping[str, Share],
    found: Mapping[str, Use],
    name: str,
    milli: int,
    capacity: int,
) -> str:
    """Return what a pod of this size waits for: the first limit on its path that it would exceed,
    or else the GPUs that all queues share."""
    begin = f"waits in queue {name}: the pod requests {_gpus(milli)};"
    for queue in tree.path(name):
        most, used = shared[queue.name].most, found[queue.name].allocated
        if most is not None and used + milli > most:
            kind = "limit" if queue.limit == most else "quota, with overQuotaWeight 0,"
            return f"{begin} {queue.name}'s {kind} is {_gpus(most)}, and {gpus(used)} in use"
    used = sum(found[top].allocated for top in tree.children[""])
    own, quota = gpus(found[name].allocated), gpus(shared[name].guaranteed)
    every = f"{gpus(used)} of {_gpus(capacity)}"
    return f"{begin} {name} uses {own} of its quota of {quota}, and all queues use {every}"


def _unplaceable(each: Pod, name: str) -> str:
    return (
        f"Kueue admitted the pod in queue {name}, but for {UNPLACED_S:.0f} s no GPU has had room"
        f" for it: free parts of different GPUs do not add up to {_gpus(each.milli)}. The pod"
        " holds quota; deleting it gives the quota back"
    )


def _gpus(milli: int) -> str:
    return f"{gpus(milli)} GPU{'' if milli == MILLI else 's'}"
