"""Kueue's objects for a tree of Queues. Pure.

An inner queue becomes a Cohort, a leaf a ClusterQueue of the same name. The Cohort ROOT above them
holds the capacity that no quota claims. A quota that does not fit its parent, or the capacity, is
scaled down with those beside it, because Kueue would admit more than the cluster has. What rounding
loses goes to ROOT. A limit becomes quota plus borrowingLimit, an overQuotaWeight of 0 forbids to
borrow, and a queue's weight counts _CLASS times more than that of the next lower priority.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from gpuslice.contract import names, quantity
from gpuslice.kube.fields import Json
from scheduler.queues.tree import MILLI, Queue, Tree

GROUP: Final = "kueue.x-k8s.io"
API_VERSION: Final = f"{GROUP}/v1beta2"
ROOT: Final = "gpuslice-root"
FLAVOR: Final = "gpuslice"
PLURALS: Final = {
    "ResourceFlavor": "resourceflavors",
    "Cohort": "cohorts",
    "ClusterQueue": "clusterqueues",
    "LocalQueue": "localqueues",
}
"""The kinds of our objects, in the order of creation."""
LABELS: Final = {"app.kubernetes.io/managed-by": names.PART_OF}
"""Labels of our objects. Objects without these are never changed."""
_CLASS: Final = 1000
_CLASSES: Final = 6
"""The number of priorities among siblings that differ in effect; lower ones count as the lowest.
More would exceed the largest quantity."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a queue gets, in thousandths of a GPU. own: nominalQuota of its object. guaranteed: of
    the queue with all below. most: the most that it may use; None: no limit of its own. weight: of
    its fair sharing. scaled: whether its quota was cut to fit."""

    own: int
    guaranteed: int
    most: int | None
    weight: float
    scaled: bool


class _Sharing:
    def __init__(self, tree: Tree, capacity: int) -> None:
        self._tree, self._capacity = tree, capacity
        self._wanted: dict[str, int] = {}
        """The guarantee of each queue with all below, before it is cut to fit above."""
        self._below: dict[str, tuple[int, int]] = {}
        """What the guarantees below an inner queue add up to: wanted, and what fits the queue."""
        self.shares: dict[str, Share] = {}

    def divide(self) -> None:
        top = self._tree.children.get("", ())
        wanted = sum(map(self._want, top))
        part = Fraction(min(self._capacity, wanted), wanted or 1)
        self._allot("", part)

    def _want(self, name: str) -> int:
        queue, most = self._tree.queues[name], self._capacity
        limit = most if queue.limit is None else queue.limit
        wanted = min(most if queue.quota is None else queue.quota, limit)
        if name in self._tree.children:
            below = sum(map(self._want, self._tree.children[name]))
            # A parent without a quota guarantees what its children do.
            fits = min(below, wanted if queue.quota else min(limit, most))
            self._below[name] = below, fits
            wanted = max(wanted, fits)
        self._wanted[name] = wanted
        return wanted

    def _allot(self, parent: str, part: Fraction) -> int:
        """Give the queues below the parent this part of what they want. Return the sum."""
        siblings, total = self._tree.children.get(parent, ()), 0
        classes = sorted({self._tree.queues[each].priority for each in siblings}, reverse=True)
        highest = min(len(classes), _CLASSES) - 1
        for name in siblings:
            queue = self._tree.queues[name]
            below, fits = self._below.get(name, (0, 0))
            own = int((self._wanted[name] - fits) * part)
            guaranteed = own + self._allot(name, part * Fraction(fits, below or 1))
            rank = max(0, highest - classes.index(queue.priority))
            most = queue.limit if queue.weight else guaranteed
            asked = queue.quota or 0
            scaled = guaranteed < (asked if queue.limit is None else min(asked, queue.limit))
            weight = (queue.weight or 1) * _CLASS**rank
            self.shares[name] = Share(own, guaranteed, most, weight, scaled)
            total += guaranteed
        return total


def shares(tree: Tree, capacity: int) -> Mapping[str, Share]:
    """Return the share of each served queue. capacity: thousandths of a GPU of all GPUs."""
    sharing = _Sharing(tree, capacity)
    sharing.divide()
    return sharing.shares


def objects(
    tree: Tree, shared: Mapping[str, Share], capacity: int, wanted: Iterable[tuple[str, str]] = ()
) -> list[dict[str, Any]]:
    """Return Kueue's objects in the order of creation. shared: `shares` of the same arguments.
    wanted: namespace and queue of each LocalQueue; those of queues that are no leaf are omitted."""
    rest = max(0, capacity - sum(share.own for share in shared.values()))
    flavor = _object("ResourceFlavor", FLAVOR, {})
    cohorts, leaves = [_object("Cohort", ROOT, _quota(rest, None))], []
    for queue in tree.served():
        share, above = shared[queue.name], queue.parent or ROOT
        if queue.name in tree.children:
            spec = {"parentName": above, **_spec(share)}
            cohorts.append(_object("Cohort", queue.name, spec))
        else:
            leaves.append(_object("ClusterQueue", queue.name, _leaf(above, share)))
    local = [
        _object("LocalQueue", name, {"clusterQueue": name}, namespace)
        for namespace, name in sorted(wanted)
        if tree.is_leaf(name)
    ]
    return [flavor, *cohorts, *leaves, *local]


def scaled_text(queue: Queue, share: Share) -> str:
    """Return the message for a queue whose quota was cut."""
    assert queue.quota is not None
    return (
        f"spec.resources.gpu.quota: {gpus(queue.quota)} does not fit the parent or the cluster:"
        f" {gpus(share.guaranteed)} is guaranteed"
    )


def gpus(milli: int) -> str:
    """Return the amount in GPUs, for people."""
    return f"{milli / MILLI:.3f}".rstrip("0").rstrip(".")


def covers(live: object, wanted: object, is_exact: bool = False) -> bool:
    """Return whether the API server's object has what is wanted. It may have more fields, which are
    defaults, except within lists. Quantities are compared by their value."""
    if isinstance(wanted, dict) and isinstance(live, dict):
        if is_exact and live.keys() != wanted.keys():
            return False
        return all(covers(live.get(key), value, is_exact) for key, value in wanted.items())
    if isinstance(wanted, list) and isinstance(live, list):
        pairs = zip(live, wanted, strict=False)
        return len(live) == len(wanted) and all(covers(a, b, True) for a, b in pairs)
    if live == wanted:
        return True
    of_live = quantity.parse(live)
    return isinstance(of_live, quantity.Value) and of_live == quantity.parse(wanted)


def _leaf(above: str, share: Share) -> Json:
    return {
        "cohortName": above,
        "namespaceSelector": {},
        **_spec(share),
        "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
    }


def _spec(share: Share) -> Json:
    borrowing = None if share.most is None else max(0, share.most - share.guaranteed)
    weight = f"{share.weight:.6f}".rstrip("0").rstrip(".")
    return {**_quota(share.own, borrowing), "fairSharing": {"weight": weight}}


def _quota(nominal: int, borrowing: int | None) -> Json:
    quota = {"name": names.RESOURCE_MILLI, "nominalQuota": str(nominal)}
    if borrowing is not None:
        quota["borrowingLimit"] = str(borrowing)
    flavors = [{"name": FLAVOR, "resources": [quota]}]
    return {"resourceGroups": [{"coveredResources": [names.RESOURCE_MILLI], "flavors": flavors}]}


def _object(kind: str, name: str, spec: Json, namespace: str = "") -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "labels": dict(LABELS)}
    if namespace:
        metadata["namespace"] = namespace
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": dict(spec)}
