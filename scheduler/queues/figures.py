"""The figures of queues: what each guarantees, may use, uses and wants. Pure.

Kueue's Workloads say what is wanted and what is admitted. Pods say which of them no GPU has room
for: Kueue counts sums, and free parts of different GPUs do not add up. Amounts are in thousandths.
The scheduler writes the figures into the Queues' status, and the commands read them there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from gpuslice.contract import names, quantity
from gpuslice.kube.fields import Json, at, objects, texts
from scheduler.queues.tree import MILLI, Finding, Queue, Queues, build

READY: Final = "Ready"
"""The type of our condition on a Queue."""
GATE: Final = "kueue.x-k8s.io/admission"
UNPLACED_S: Final = 60.0
"""The time after admission from which a pod without a node counts as unplaceable."""
_ENDED: Final = ("Succeeded", "Failed")
_LABELS: Final = (names.LABEL_KAI_QUEUE, names.LABEL_RUNAI_QUEUE)
_FIGURES: Final = "figures"
"""The field of the status that only gpuslice has. Amounts in it are GPUs; -1 is no limit."""
_AMOUNTS: Final = {
    **{key: key for key in ("guaranteed", "share", "used", "wanted")},
    "limit": "most",
}
"""Their names, and those of the fields."""
_COUNTS: Final = ("waiting", "unplaceable")
_UNLIMITED: Final = -1
_UNSEEN: Final = Finding("", "the scheduler has not served the Queue yet: is queues.enabled true?")

Locals = Mapping[tuple[str, str], str]
"""The ClusterQueue of each LocalQueue, by namespace and name."""


class Work(NamedTuple):
    """A Workload that has not finished. queue: its LocalQueue. holder: the ClusterQueue whose quota
    it holds. owner: the UID of its pod or Job. why: Kueue's text of why it waits."""

    namespace: str
    queue: str
    milli: int
    is_admitted: bool
    holder: str = ""
    owner: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod with Kueue's label that has not ended. label: the key that its author wrote."""

    uid: str
    namespace: str
    name: str
    queue: str
    label: str
    milli: int
    is_gated: bool
    is_bound: bool


# --- reading


def work(raw: Json) -> Work | None:
    """Read a Workload; None if it has finished."""
    metadata, spec, status = at(raw, "metadata"), at(raw, "spec"), at(raw, "status")
    conditions = {each.get("type"): each for each in objects(status, "conditions")}
    met = {key for key, each in conditions.items() if each.get("status") == "True"}
    if "Finished" in met:
        return None
    admission, is_admitted = at(status, "admission"), "Admitted" in met
    milli = sum(
        int(each.get("count") or 1) * milli_of(at(at(each, "template"), "spec"))
        for each in objects(spec, "podSets")
    )
    owners = objects(metadata, "ownerReferences")
    return Work(
        namespace=str(metadata.get("namespace")),
        queue=str(spec.get("queueName")),
        milli=_admitted(status, admission) if is_admitted else milli,
        is_admitted=is_admitted,
        holder=str(admission.get("clusterQueue", "")),
        owner=str(owners[0].get("uid")) if owners else "",
        why="" if is_admitted else str(conditions.get("QuotaReserved", {}).get("message", "")),
    )


def _admitted(status: Json, admission: Json) -> int:
    """Return what Kueue counts: it may admit fewer pods than a Job has, and frees what those held
    that have ended."""
    ended = {each.get("name"): int(each["count"]) for each in objects(status, "reclaimablePods")}
    total = 0
    for each in objects(admission, "podSetAssignments"):
        used, count = _amount(at(each, "resourceUsage")), int(each.get("count") or 1)
        total += used * (count - ended.get(each.get("name"), 0)) // count
    return total


def pod(raw: Json) -> Pod | None:
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
    )


def milli_of(spec: Json) -> int:
    """Return what a pod's containers request together with its sidecars, or an init container with
    the sidecars before it if that is more. Source: Kubernetes' component-helpers (PodRequests)."""
    sidecars, most = 0, 0
    for each in objects(spec, "initContainers"):
        if each.get("restartPolicy") == "Always":
            sidecars += _requested(each)
        else:
            most = max(most, sidecars + _requested(each))
    return max(most, sidecars + sum(map(_requested, objects(spec, "containers"))))


def _requested(container: Json) -> int:
    return _amount(at(at(container, "resources"), "requests"))


def _amount(resources: Json) -> int:
    read = quantity.parse(resources.get(names.RESOURCE_MILLI))
    return read.amount if isinstance(read, quantity.Value) else 0


def locals_of(raws: Iterable[Json]) -> Locals:
    """Read LocalQueues."""
    pairs = ((at(raw, "metadata"), at(raw, "spec").get("clusterQueue")) for raw in raws)
    return {(str(of.get("namespace")), str(of.get("name"))): str(name) for of, name in pairs}


# --- figures


def count(
    queues: Queues,
    works: Iterable[Work],
    pods: Iterable[Pod],
    local: Locals,
    ages_s: Mapping[str, float],
    kept: Mapping[str, str],
) -> None:
    """Count what is used and wanted. pods: in namespaces with queues. ages_s: for how long each has
    been at Kueue's gate, or without it, by UID. kept: the held ClusterQueues, and where they
    count."""
    for each in works:
        name = each.holder or local.get((each.namespace, each.queue), "")
        for queue in _path(queues, name, kept):
            queue.wanted += each.milli
            queue.used += each.milli * each.is_admitted
            queue.waiting += not each.is_admitted
    for one in pods:
        name = local.get((one.namespace, one.queue), one.queue)
        if name in queues and queues[name].below:
            queues[name].strays.append(f"{one.namespace}/{one.name}")
        elif is_unplaceable(one, ages_s):
            for queue in _path(queues, name, kept):
                queue.unplaceable += 1
    _divide(queues[""], queues[""].guaranteed)


def _path(queues: Queues, name: str, kept: Mapping[str, str]) -> Iterable[Queue]:
    own = queues.get(name)
    if own and own.is_leaf:
        return own.path()
    if name not in kept:
        return ()
    above = queues[kept[name]].path()
    return (own, *above) if own and not own.below else above


def is_unplaceable(one: Pod, ages_s: Mapping[str, float]) -> bool:
    return not one.is_gated and not one.is_bound and ages_s[one.uid] >= UNPLACED_S


def _divide(queue: Queue, share: float) -> None:
    """Set what each queue below gets in KAI's order, if all get what they want: up to the
    guarantee, then by weight up to the limit."""
    queue.share, asked = share, {each: _asked(each) for each in queue.below}
    got = {each: float(min(most, each.guaranteed)) for each, most in asked.items()}
    while hungry := [each for each in queue.below if got[each] < asked[each]]:
        rest = max(0.0, share - sum(got.values()))
        weight = sum(each.fair_weight for each in hungry)
        parts = {each: got[each] + rest * each.fair_weight / weight for each in hungry}
        full = {each: float(asked[each]) for each in hungry if asked[each] <= parts[each]}
        got |= full or parts
        if not full:
            break
    for each in queue.below:
        _divide(each, got[each])


def _asked(queue: Queue) -> int:
    asked = sum(map(_asked, queue.below)) if queue.below else queue.wanted
    return asked if queue.most is None else min(asked, queue.most)


# --- the Queue's status


def shown(queue: Queue, cluster: int) -> Json:
    """Return the figures as `restore` reads them. cluster: all GPUs."""
    amounts = {"cluster": cluster, **{key: getattr(queue, of) for key, of in _AMOUNTS.items()}}
    gpus = {key: _UNLIMITED if n is None else round(n) / MILLI for key, n in amounts.items()}
    return gpus | {key: getattr(queue, key) for key in _COUNTS}


def written(queue: Queue, cluster: int) -> Json:
    """Return the fields of a Queue's status: the figures, and what KAI has."""
    return {
        "childQueues": [each.name for each in queue.below],
        "allocated": {names.RESOURCE_NVIDIA_GPU: _quantity(queue.used)},
        "requested": {names.RESOURCE_NVIDIA_GPU: _quantity(queue.wanted)},
        _FIGURES: shown(queue, cluster),
    }


def restore(raws: Sequence[Json]) -> Queues:
    """Return the queues with the figures in their status."""
    queues = build(raws)
    root = queues[""]
    for raw in raws:
        queue, figures = queues[at(raw, "metadata")["name"]], at(at(raw, "status"), _FIGURES)
        for key, of in _AMOUNTS.items():
            setattr(queue, of, round(MILLI * figures.get(key, 0)))
        for key in _COUNTS:
            setattr(queue, key, figures.get(key, 0))
        queue.most = None if figures.get("limit") == _UNLIMITED else queue.most
        root.guaranteed = max(root.guaranteed, round(MILLI * figures.get("cluster", 0)))
        ready = [e for e in objects(at(raw, "status"), "conditions") if e.get("type") == READY]
        if not ready:
            queue.fault = queue.fault or _UNSEEN
        elif ready[0].get("status") == "False":
            queue.fault = Finding(str(ready[0].get("reason")), str(ready[0].get("message")))
    for top in root.below:
        root.used, root.waiting = root.used + top.used, root.waiting + top.waiting
    return queues


def _quantity(milli: int) -> str:
    """Return the amount in GPUs, as Kubernetes writes it."""
    return f"{milli}m" if milli % MILLI else str(milli // MILLI)
