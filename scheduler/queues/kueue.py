"""Kueue's objects for a tree of Queues. Pure.

An inner queue becomes a Cohort, a leaf a ClusterQueue of the same name. The Cohort ROOT above them
holds the capacity that no quota claims. A quota that does not fit its parent, or the capacity, is
scaled down with those beside it, because Kueue would admit more than the cluster has. What rounding
loses stays with the parent. A limit becomes quota plus borrowingLimit, an overQuotaWeight of 0
forbids to borrow. A weight counts _CLASS times more than that of the next lower priority.

A ClusterQueue whose Queue is no leaf any more is held while it has pods: without quota, and counted
where it was. Kueue would keep a deleted one until its last pod ends, with its quota.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Final

from gpuslice.contract import names
from gpuslice.kube.fields import Json
from scheduler.queues.tree import MILLI, ROOT, Finding, Queue, Queues

API_VERSION: Final = "kueue.x-k8s.io/v1beta2"
API: Final = f"/apis/{API_VERSION}"
_FLAVOR: Final = "gpuslice"
PLURALS: Final = {
    "ResourceFlavor": "resourceflavors",
    "Cohort": "cohorts",
    "ClusterQueue": "clusterqueues",
    "LocalQueue": "localqueues",
}
"""The kinds of our objects, in the order of creation."""
LABELS: Final = {"app.kubernetes.io/managed-by": names.PART_OF}
"""Labels of our objects. Objects without these are never changed."""
_LEAF: Final = {
    "namespaceSelector": dict[str, Any](),
    "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
}
_STOP, _HOLD, _RUN = "stopPolicy", "Hold", "None"
_CLASS: Final = 1000
_CLASSES: Final = 6
"""The number of priorities among siblings that differ in effect; lower ones count as the lowest.
More would exceed the largest quantity."""


def divide(queues: Queues, capacity: int) -> None:
    """Compute what each queue gets. capacity: thousandths of a GPU of all GPUs."""
    root = queues[""]
    _want(root, capacity)
    _allot(root, Fraction(1))
    root.guaranteed, root.own = capacity, capacity - sum(each.guaranteed for each in root.below)


def _want(queue: Queue, capacity: int) -> int:
    """Return the guarantee of the queue, before it is cut to fit above."""
    limit = capacity if queue.limit is None else queue.limit
    wanted = min(capacity if queue.quota is None else queue.quota, limit)
    below = sum(_want(each, capacity) for each in queue.below)
    # A parent without a quota guarantees what its children do.
    fits = min(below, wanted if queue.quota else min(limit, capacity))
    queue.guaranteed, queue.part = max(wanted, fits), Fraction(fits, below or 1)
    return queue.guaranteed


def _allot(queue: Queue, part: Fraction) -> None:
    """Give the queue this part of what it wants."""
    classes = sorted({each.priority for each in queue.below}, reverse=True)
    highest = min(len(classes), _CLASSES) - 1
    for each in queue.below:
        _allot(each, part * queue.part)
        rank = max(0, highest - classes.index(each.priority))
        each.fair_weight = (each.weight or 1) * _CLASS**rank
    queue.guaranteed = int(queue.guaranteed * part)
    queue.own = queue.guaranteed - sum(each.guaranteed for each in queue.below)
    queue.most = queue.limit if queue.weight else queue.guaranteed


def held(queues: Queues, there: Iterable[Json], busy: Container[str]) -> dict[str, str]:
    """Return the ClusterQueues of `there`, all ours, that no leaf has but that must stay, with the
    queue they count in. busy: those that have pods. One is held before it may be deleted, because
    Kueue may admit a pod meanwhile."""
    kept: dict[str, str] = {}
    for raw in there:
        name, spec = raw["metadata"]["name"], raw["spec"]
        queue = queues.get(name)
        if not (queue and queue.is_leaf) and (name in busy or spec.get(_STOP) != _HOLD):
            places = (name, str(spec.get("cohortName")))
            inner = (q for each in places if (q := queues.get(each)) and q.above and q.below)
            kept[name] = next((q.name for q in inner), "")
    return kept


def objects(
    queues: Queues,
    wanted: Iterable[tuple[str, str]] = (),
    kept: Mapping[str, str] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Return Kueue's objects in the order of creation. wanted: namespace and queue of each
    LocalQueue; those of queues that are no leaf are omitted. kept: what `held` returned."""
    root, made = queues[""], [_object("ResourceFlavor", _FLAVOR, {})]
    made.append(_object("Cohort", ROOT, _quota(root.own, None)))
    made += [
        _object("Cohort", queue.name, {"parentName": queue.parent or ROOT, **_spec(queue)})
        for queue in root.tree()
        if queue.below
    ]
    stopped = {_STOP: _HOLD, **_quota(0, None)}
    leaves = {
        **{name: (above, stopped) for name, above in kept.items()},
        **{each.name: (each.parent, _spec(each)) for each in root.tree() if each.is_leaf},
    }
    for name, (above, spec) in leaves.items():
        whole = {"cohortName": above or ROOT, **_LEAF, _STOP: _RUN, **spec}
        made.append(_object("ClusterQueue", name, whole))
    made += [
        _object("LocalQueue", name, {"clusterQueue": name}, namespace)
        for namespace, name in sorted(wanted)
        if name in queues and queues[name].is_leaf
    ]
    return made


def is_cut(queue: Queue) -> bool:
    """Return whether the quota does not fit, so that less is guaranteed."""
    most = (queue.above or queue).guaranteed if queue.quota is None else queue.quota
    most = most if queue.limit is None else min(most, queue.limit)
    return queue.guaranteed < most - 1  # which rounding may take


def notes(queue: Queue) -> Sequence[Finding]:
    """Return what is not as the Queue says."""
    if not is_cut(queue):
        return queue.notes
    text = f"{asked(queue)} does not fit the parent or the cluster"
    text = f"spec.resources.gpu.quota: {text}: {gpus(queue.guaranteed)} is guaranteed"
    return [Finding("QuotaScaled", text), *queue.notes]


def asked(queue: Queue) -> str:
    return "-1" if queue.quota is None else gpus(queue.quota)


def gpus(milli: int) -> str:
    """Return the amount in GPUs, for people."""
    return f"{milli / MILLI:.3f}".rstrip("0").rstrip(".")


def _spec(queue: Queue) -> Json:
    borrowing = None if queue.most is None else max(0, queue.most - queue.guaranteed)
    weight = f"{queue.fair_weight:.6f}".rstrip("0").rstrip(".")
    return {**_quota(queue.own, borrowing), "fairSharing": {"weight": weight}}


def _quota(nominal: int, borrowing: int | None) -> Json:
    quota = {"name": names.RESOURCE_MILLI, "nominalQuota": str(nominal)}
    if borrowing is not None:
        quota["borrowingLimit"] = str(borrowing)
    flavors = [{"name": _FLAVOR, "resources": [quota]}]
    return {"resourceGroups": [{"coveredResources": [names.RESOURCE_MILLI], "flavors": flavors}]}


def _object(kind: str, name: str, spec: Json, namespace: str = "") -> dict[str, Any]:
    place = {"namespace": namespace} if namespace else {}
    metadata = {"name": name, "labels": dict(LABELS), **place}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": dict(spec)}
