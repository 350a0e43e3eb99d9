"""Cache of the pods bound to this node: their allocations in binding order.

The cache shows which pods were bound to a GPU that was already full, and which grants no scheduler
wrote. Pure: the pod watch updates it. Missing information never leads to a refusal.

The watch reports pods in binding order. Pods of a list are ordered by their binding time, in whole
seconds. Pods that were created with spec.nodeName come last. A scheduler writes an allocation once,
before the pod reaches its node. Our scheduler also writes its own name. The cache cannot detect a
grant that was written at a pod's creation and bound by another scheduler (docs/adr/0024).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

from gpuslice.contract import allocation, names
from nri_plugin.policy import annotation_claims, ledger
from nri_plugin.policy.kube_objects import Bound
from nri_plugin.policy.ledger import Hold
from nri_plugin.policy.model import Gpu, Pod
from nri_plugin.policy.refusals import (
    INVENTORY_DEPENDENT,
    RESCHEDULE,
    Reason,
    Refusal,
    Refused,
    refuse,
)
from nri_plugin.policy.totals import Entry

_NEVER: Final = "~"
"""The binding time of a pod that was not bound. As a text it sorts after every time."""
_CHANGED: Final = "annotation {key} was changed after the pod was bound"
_DIFFERS: Final = "annotation {key} differs there" + RESCHEDULE


@dataclass(frozen=True, slots=True)
class _Known:
    """A pod of the cache. place: sorts pods in binding order (batch, time, UID). foreign: the
    evidence that no scheduler wrote the pod's grant, if any."""

    bound: Bound
    place: tuple[int, str, str]
    gpus: Sequence[allocation.DeviceEntry]
    foreign: Refusal | None


class BoundPods:
    """The pods of this node. Empty until the watch has listed them."""

    def __init__(self) -> None:
        self.listed = False
        """Whether the watch has listed the pods once."""
        self._version = 0  # increases when a pod comes, ends or becomes foreign
        self._pods: dict[str, _Known] = {}
        self._batch = 0
        self._listing = False
        self._over_for: object = None
        self._over: Mapping[str, Refusal] = {}

    def put(self, bound: Bound, listing: bool) -> None:
        """Add or update a pod, or remove a finished pod. listing: the pod comes from a list."""
        uid = bound.pod.uid
        if bound.finished:
            self.deleted(uid)
            return
        before = self._pods.get(uid)
        if before is None:
            self._batch += not (listing and self._listing)
            self._listing = listing
        place = before.place if before else (self._batch, bound.scheduled or _NEVER, uid)
        foreign = before.foreign if before else None
        # The evidence is kept, because the pod's author may remove it from the object later.
        foreign = foreign or _foreign(bound, before.bound if before else None)
        now = _Known(bound, place, annotation_claims.gpus(bound.pod.annotations), foreign)
        self._pods[uid] = now
        if before is None or before.foreign != foreign:
            self._version += 1

    def deleted(self, uid: str) -> None:
        if self._pods.pop(uid, None) is not None:
            self._version += 1

    def keep(self, uids: AbstractSet[str]) -> None:
        """Remove all pods except `uids`. Called at the end of a list."""
        self.listed = True
        self._listing = False
        for uid in self._pods.keys() - uids:
            self.deleted(uid)

    def uids(self) -> AbstractSet[str]:
        return self._pods.keys()

    def name(self, uid: str) -> str:
        """Return NAMESPACE/NAME of the pod, or its UID if the pod is not known."""
        known = self._pods.get(uid)
        return f"{known.bound.pod.namespace}/{known.bound.pod.name}" if known else f"pod {uid}"

    def requested(self) -> Mapping[str, int]:
        """Return the sum of all pods' requests, by resource."""
        total: Counter[str] = Counter()
        for known in self._pods.values():
            total.update(known.bound.requested)
        return total

    def granted(self, listed: Iterable[Entry]) -> AbstractSet[str]:
        """Return the GPUs of which a pod was granted a share. listed: the Device's GPUs, which give
        the UUID where an older Koordinator wrote only the minor."""
        by_minor = {entry.gpu.minor: entry.gpu.uuid for entry in listed}
        entries = (entry for known in self._pods.values() for entry in known.gpus)
        return frozenset({each.id or by_minor.get(each.minor, "") for each in entries} - {""})

    def allocated(self) -> Mapping[str, Sequence[allocation.DeviceEntry]]:
        """Return the pods' allocations by UID, except those that no scheduler wrote."""
        return {uid: known.gpus for uid, known in self._pods.items() if not known.foreign}

    def awaiting_claims(self) -> Sequence[str]:
        """Return the UIDs of the pods whose ResourceClaims the kubelet may prepare later."""
        return [uid for uid, known in self._pods.items() if known.bound.awaits_claims]

    def pod(self, uid: str) -> Bound | None:
        known = self._pods.get(uid)
        return known.bound if known else None

    def objection(self, pod: Pod, gpus: Sequence[Gpu], holding: AbstractSet[str]) -> Refusal | None:
        """Return why a container may not have its share. pod: its pod as the runtime reports it."""
        known = self._pods.get(pod.uid)
        if known is None:
            return None
        if known.foreign:
            return known.foreign
        other = _differing(known.bound.pod.annotations, pod.annotations)
        if other:
            return refuse(Reason.GRANT_UNCONFIRMED, problem=_DIFFERS.format(key=other))
        return self.over(gpus, holding).get(pod.uid)

    def foreign(self) -> Mapping[str, Refusal]:
        """Return the pods whose grant no scheduler wrote, by UID. They take no capacity."""
        return {uid: known.foreign for uid, known in self._pods.items() if known.foreign}

    def over(self, gpus: Sequence[Gpu], holding: AbstractSet[str]) -> Mapping[str, Refusal]:
        """Return the pods for which no free capacity was left when they were bound, by UID. Such a
        pod takes no capacity from pods that were bound later.

        holding: UIDs of pods whose containers hold a share. Of pods with equal binding times, these
        count as bound first.
        """
        query = (self._version, tuple(gpus), holding)
        if self._over_for != query:
            self._over_for, self._over = query, self._find_over(gpus, holding)
        return self._over

    def _find_over(self, gpus: Sequence[Gpu], holding: AbstractSet[str]) -> Mapping[str, Refusal]:
        def in_order(known: _Known) -> tuple[int, str, bool, str]:
            return *known.place[:2], known.place[2] not in holding, known.place[2]

        whole = ledger.whole(gpus)
        before: list[Hold] = []
        refusals: dict[str, Refusal] = {}
        granted = (known for known in self._pods.values() if known.gpus and not known.foreign)
        for known in sorted(granted, key=in_order):
            pod = known.bound.pod
            try:
                allocated = annotation_claims.allocated(pod, gpus)
                hold = ledger.hold(pod.uid, pod.uid, pod, "", allocated)
            except Refused:  # the pod's containers are refused, so it takes no capacity
                continue
            refusal = ledger.short(Reason.GRANT_OVERFILLS, hold, before, whole)
            if refusal is None:
                before.append(hold)
            else:
                refusals[pod.uid] = refusal
        return refusals

    def mismatch(self, hold: Hold, gpus: Sequence[Gpu]) -> Refusal | None:
        """Return why the pod's grant forbids the hold. None: the grant allows it, or is unknown."""
        known = self._pods.get(hold.pod_uid)
        if known is None:
            return None
        if foreign := known.foreign or _since(known.bound, hold):
            return foreign
        try:
            # A label that was added to a running pod does not change the pod's grant.
            pod = replace(known.bound.pod, labels=hold.pod.labels)
            granted = annotation_claims.claim(pod, hold.container, gpus)
        except Refused as refused:
            # A failed GPU may be the cause, and the grant may be valid.
            if refused.refusal.reason in INVENTORY_DEPENDENT:
                return _unnamed(hold, annotation_claims.gpus(pod.annotations))
            return refuse(Reason.GRANT_UNCONFIRMED, problem=refused.refusal.text)
        of_gpu = ledger.parts(granted.shares if granted else ())
        for uuid, part in hold.parts.items():
            has = of_gpu.get(uuid, ledger.NOTHING)
            if not part.within(has):
                problem = (
                    f"container {hold.container} has {part.memory_bytes} bytes and"
                    f" {part.core_percent} percent of {uuid}, granted are"
                    f" {has.memory_bytes} and {has.core_percent}"
                )
                return refuse(Reason.GRANT_UNCONFIRMED, problem=problem + RESCHEDULE)
        return None


def _since(bound: Bound, hold: Hold) -> Refusal | None:
    """Return how the grant was changed after the container's creation. None: it was not changed, or
    the runtime reports no earlier grant."""
    then = hold.pod.annotations
    key = _differing(bound.pod.annotations, then) if _granted(then) else ""
    return refuse(Reason.GRANT_FOREIGN, problem=_CHANGED.format(key=key)) if key else None


def _unnamed(hold: Hold, entries: Sequence[allocation.DeviceEntry]) -> Refusal | None:
    """Return a refusal if the container has a GPU that its pod's allocation does not name. The
    allocation still names a failed GPU."""
    ids = {entry.id for entry in entries}
    others = [uuid for uuid in hold.parts if uuid not in ids]
    if not others or None in ids:
        return None
    problem = (
        f"container {hold.container} has a share of {others[0]}, which the grant does not name"
    )
    return refuse(Reason.GRANT_UNCONFIRMED, problem=problem + RESCHEDULE)


def _foreign(bound: Bound, before: Bound | None) -> Refusal | None:
    """Return the evidence that no scheduler wrote the pod's grant, or that it was changed later.
    None: there is no evidence, or no grant. before: the pod's previous state in the cache."""
    now, problem = bound.pod.annotations, ""
    if before is not None:
        key = _differing(now, before.pod.annotations)
        if not key and _granted(now) and bound.writer != before.writer:
            key = names.ANNOTATION_WRITER
        problem = _CHANGED.format(key=key) if key else ""
    elif _granted(now) and not bound.scheduled:
        # A scheduler's Binding sets spec.nodeName and the condition PodScheduled in one write.
        no_condition = "(it has no condition PodScheduled)"
        problem = f"the pod was created with spec.nodeName; no scheduler bound it {no_condition}"
    elif _granted(now) and not bound.writer and (bound.is_ours or names.ANNOTATION_GRANTS in now):
        key = names.ANNOTATION_WRITER
        problem = f"annotation {key}, which our scheduler writes with it, is missing"
    return refuse(Reason.GRANT_FOREIGN, problem=problem) if problem else None


def _granted(annotations: Mapping[str, str]) -> bool:
    return names.ANNOTATION_GRANTS in annotations or bool(annotation_claims.gpus(annotations))


def _differing(now: Mapping[str, str], then: Mapping[str, str]) -> str:
    """Return the annotation in which two versions of a pod's grant differ. "": they are equal."""
    if annotation_claims.gpus(now) != annotation_claims.gpus(then):
        return names.ANNOTATION_DEVICE_ALLOCATED
    grants = names.ANNOTATION_GRANTS
    return grants if now.get(grants) != then.get(grants) else ""
