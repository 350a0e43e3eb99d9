"""The pods of this node as the API server has them: what they were granted, in the order of their
binding, which of them were bound to a GPU that was full, and which grants no scheduler wrote.

Pure: filled by the watch; its size is bounded by the node's pods. What is not known refutes
nothing: the ledger decides without it.

The order in which pods were bound is that in which the watch reported them: a pod comes to it with
its binding. Of a list's pods, which come in no order, the time of their binding is known to the
second; a pod without a Binding, created with its node, is behind those.

A scheduler's part is written once, before the pod comes to its node: ours writes it in the Binding,
Koordinator's just before it. So neither writes it into a pod that has no Binding, nor changes it
later, and ours adds its name. A grant that is written at a pod's creation, and bound by another
scheduler, is not found here, but held to the order of binding. docs/adr/0027 has the reasons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from contract import allocation, names
from nri_plugin import ledger, policy
from nri_plugin.errors import Reason, Refusal, Refused, refuse
from nri_plugin.ledger import Hold
from nri_plugin.model import Gpu, Pod
from nri_plugin.objects import Bound
from nri_plugin.totals import Entry

_T = TypeVar("_T")

_NEVER: Final = "~"
"""Behind every time."""
_GPUS_MAY_TELL: Final = frozenset(
    {Reason.GPU_UNKNOWN, Reason.GPU_MISMATCH, Reason.MEMORY_OUT_OF_RANGE}
)
"""What cannot be judged by the GPUs as they are: one has failed, or was replaced."""
_REMEMBERED: Final = 256
_CHANGED: Final = "annotation {key} was changed after the pod was bound"


@dataclass(frozen=True, slots=True)
class _Known:
    """A pod of the watch. place: in the order of binding, of which batch, when, and its UID.
    foreign: why no scheduler wrote its grant; None: nothing shows that."""

    bound: Bound
    place: tuple[int, str, str]
    gpus: Sequence[allocation.DeviceEntry]
    foreign: Refusal | None


class Bounds:
    """Empty until the watch has listed pods."""

    def __init__(self) -> None:
        self._version = 0  # of all that was granted to pods
        self._pods: dict[str, _Known] = {}
        self._batch = 0
        self._listing = False
        self.ask: Callable[[Pod], Awaitable[None]] | None = None
        """Finds out about a pod that the watch has not reported, and calls `vouch` or `deny`, or,
        without an answer, neither. None: there is no API server to ask."""
        self._vouched: dict[str, Bound] = {}
        self._denied: dict[str, str] = {}
        self._gone: dict[str, None] = {}
        self._over_for: object = None
        self._over: Mapping[str, Refusal] = {}

    def put(self, bound: Bound, listing: bool) -> None:
        """It is there, as it is now. listing: of a list. One that has finished is gone."""
        uid = bound.pod.uid
        if bound.finished:
            self.lost(uid)
            return
        before, asked = self._pods.get(uid), self._vouched.pop(uid, None)
        self._denied.pop(uid, None)
        if before is None:
            self._batch += not (listing and self._listing)
            self._listing = listing
        place = before.place if before else (self._batch, bound.scheduled or _NEVER, uid)
        foreign = before.foreign if before else None
        # Once it was found foreign, it stays so: what showed it may be put right afterwards.
        foreign = foreign or _foreign(bound, before.bound if before else None)
        foreign = foreign or (_foreign(bound, asked) if asked else None)
        now = _Known(bound, place, policy.gpus(bound.pod.annotations), foreign)
        self._pods[uid] = now
        if before is None or before.bound.pod != bound.pod or before.foreign != foreign:
            self._version += 1

    def lost(self, uid: str) -> None:
        if self._pods.pop(uid, None) is not None:
            _remember(self._gone, uid, None)
            self._version += 1

    def keep(self, uids: AbstractSet[str]) -> None:
        """No others are there; a list has ended."""
        self._listing = False
        self._vouched.clear()
        for uid in self._pods.keys() - uids:
            self.lost(uid)

    def asked(self) -> Mapping[str, int]:
        """By resource, what all of them ask for together."""
        total: Counter[str] = Counter()
        for known in self._pods.values():
            total.update(known.bound.asked)
        return total

    def granted(self, listed: Iterable[Entry]) -> AbstractSet[str]:
        """The GPUs of which they were granted a share. listed: the Device's, since Koordinator may
        name a GPU by its minor alone."""
        by_minor = {entry.gpu.minor: entry.gpu.uuid for entry in listed}
        entries = (entry for known in self._pods.values() for entry in known.gpus)
        return frozenset({each.id or by_minor.get(each.minor, "") for each in entries} - {""})

    def allocated(self) -> Mapping[str, Sequence[allocation.DeviceEntry]]:
        """By UID, what they were granted, if a scheduler may have written it."""
        return {uid: known.gpus for uid, known in self._pods.items() if not known.foreign}

    def unknown(self, pod: Pod) -> bool:
        """Whether the API server can be asked about it, and has not been."""
        uid = pod.uid
        known = uid in self._denied or self.heard(uid) is not None
        return self.ask is not None and not known

    def vouch(self, bound: Bound) -> None:
        """It is there; its place in the order is for the watch to tell."""
        _remember(self._vouched, bound.pod.uid, bound)

    def deny(self, uid: str, why: str) -> None:
        """The API server has no such pod here."""
        _remember(self._denied, uid, why)

    def denied(self, uid: str) -> str:
        """Why the API server has no such pod here; "": it has not said so."""
        return self._denied.get(uid, "")

    def gone(self, uid: str) -> bool:
        """Whether its object was there, and was removed."""
        return uid in self._gone

    def pod(self, uid: str) -> Bound | None:
        """As the watch reported it."""
        known = self._pods.get(uid)
        return known.bound if known else None

    def heard(self, uid: str) -> Bound | None:
        """As the watch reported it, or as the API server answered."""
        return self.pod(uid) or self._vouched.get(uid)

    def objection(self, pod: Pod, gpus: Sequence[Gpu], holding: AbstractSet[str]) -> Refusal | None:
        """Why a container of the pod, as the runtime tells of it, may not have its share."""
        if pod.uid in self._denied:
            return refuse(Reason.GRANT_UNCONFIRMED, problem=self._denied[pod.uid])
        bound = self.heard(pod.uid)
        if bound is None:
            return None
        if foreign := self._origin(bound):
            return foreign
        other = _differing(bound.pod.annotations, pod.annotations)
        if other:
            return refuse(Reason.GRANT_UNCONFIRMED, problem=f"annotation {other} differs there")
        return self.over(gpus, holding).get(pod.uid)

    def foreign(self) -> Mapping[str, Refusal]:
        """By UID, pods whose grant no scheduler wrote; they take no room from others."""
        return {uid: known.foreign for uid, known in self._pods.items() if known.foreign}

    def _origin(self, bound: Bound) -> Refusal | None:
        """Why no scheduler wrote the pod's grant; None: nothing shows that."""
        known = self._pods.get(bound.pod.uid)
        return known.foreign if known else _foreign(bound, None)

    def over(self, gpus: Sequence[Gpu], holding: AbstractSet[str]) -> Mapping[str, Refusal]:
        """By UID, the pods for which there was no room left when they were bound. holding: of whom
        containers hold a share already; they come first where the order is not known.

        A pod that has none has none of those that come behind it in its way.
        """
        asked_for = (self._version, tuple(gpus), holding)
        if self._over_for != asked_for:
            self._over_for, self._over = asked_for, self._find_over(gpus, holding)
        return self._over

    def _find_over(self, gpus: Sequence[Gpu], holding: AbstractSet[str]) -> Mapping[str, Refusal]:
        def in_order(known: _Known) -> tuple[int, str, bool, str]:
            batch, scheduled, uid = known.place
            return batch, scheduled, uid not in holding, uid

        whole = ledger.whole(gpus)
        held = dict.fromkeys(whole, ledger.NOTHING)
        before: list[Hold] = []
        found: dict[str, Refusal] = {}
        granted = (known for known in self._pods.values() if known.gpus and not known.foreign)
        for known in sorted(granted, key=in_order):
            pod = known.bound.pod
            try:
                hold = ledger.hold(pod.uid, pod.uid, True, pod, "", policy.allocated(pod, gpus))
            except Refused:  # a container of it is not made, whatever the reason
                continue
            if all(held[gpu].plus(part).within(whole[gpu]) for gpu, part in hold.parts.items()):
                held.update((gpu, held[gpu].plus(part)) for gpu, part in hold.parts.items())
                before.append(hold)
                continue
            shortage = ledger.short(Reason.GRANT_OVERFILLS, hold, before, whole)
            assert shortage is not None
            found[pod.uid] = shortage.refusal()
        return found

    def doubt(self, hold: Hold, gpus: Sequence[Gpu]) -> Refusal | None:
        """Why what a container holds is not what its pod was granted; None: it is, or it is not
        known."""
        bound = self.heard(hold.pod_uid)
        if bound is None:
            return None
        if foreign := self._origin(bound) or _since(bound, hold):
            return foreign
        try:
            # A label that was put on a running pod changes nothing that it was granted.
            pod = replace(bound.pod, labels=hold.pod.labels)
            claimed = policy.claim(pod, hold.container, gpus)
        except Refused as refused:
            if refused.refusal.reason in _GPUS_MAY_TELL:
                return _unnamed(hold, policy.gpus(pod.annotations))
            return refuse(Reason.GRANT_UNCONFIRMED, problem=refused.refusal.text)
        granted = ledger.parts(claimed.shares if claimed else ())
        for uuid, part in hold.parts.items():
            has = granted.get(uuid, ledger.NOTHING)
            if not part.within(has):
                problem = (
                    f"container {hold.container} has {part.memory_bytes} bytes and"
                    f" {part.core_percent} percent of {uuid}, granted are"
                    f" {has.memory_bytes} and {has.core_percent}"
                )
                return refuse(Reason.GRANT_UNCONFIRMED, problem=problem)
        return None


def _since(bound: Bound, hold: Hold) -> Refusal | None:
    """Why the grant was changed since the container was made; None: it was not, or the runtime has
    not told what it was."""
    then = hold.pod.annotations
    key = _differing(bound.pod.annotations, then) if _granted(then) else ""
    return refuse(Reason.GRANT_FOREIGN, problem=_CHANGED.format(key=key)) if key else None


def _unnamed(hold: Hold, entries: Sequence[allocation.DeviceEntry]) -> Refusal | None:
    """A GPU that failed is still named by who was granted it."""
    named = {entry.id for entry in entries}
    others = [uuid for uuid in hold.parts if uuid not in named]
    if not others or None in named:
        return None
    problem = f"container {hold.container} has a part of {others[0]}, granted is none of it"
    return refuse(Reason.GRANT_UNCONFIRMED, problem=problem)


def _foreign(bound: Bound, before: Bound | None) -> Refusal | None:
    """Why no scheduler wrote its grant; None: nothing shows that, or it was granted no GPU. before:
    as the API server had it when it was last reported. Each rule is a fact, no guess."""
    now, problem = bound.pod.annotations, ""
    if before is not None:
        key = _differing(now, before.pod.annotations)
        if not key and _granted(now) and bound.writer != before.writer:
            key = names.ANNOTATION_WRITER
        problem = _CHANGED.format(key=key) if key else ""
    elif _granted(now) and not bound.scheduled:
        # A Binding writes node and condition in one step.
        no_condition = "(it has no condition PodScheduled)"
        problem = f"it was made with its node, and bound by nobody {no_condition}"
    elif _granted(now) and not bound.writer and (bound.asks_us or names.ANNOTATION_GRANTS in now):
        key = names.ANNOTATION_WRITER
        problem = f"annotation {key}, which our scheduler writes with it, is not there"
    return refuse(Reason.GRANT_FOREIGN, problem=problem) if problem else None


def _granted(annotations: Mapping[str, str]) -> bool:
    """Whether they grant the pod a part of a GPU; other devices do not matter here."""
    return names.ANNOTATION_GRANTS in annotations or bool(policy.gpus(annotations))


def _differing(now: Mapping[str, str], then: Mapping[str, str]) -> str:
    """The annotation in which two versions of a pod's grant differ; empty: none."""
    if policy.gpus(now) != policy.gpus(then):
        return names.ANNOTATION_DEVICE_ALLOCATED
    grants = names.ANNOTATION_GRANTS
    return grants if now.get(grants) != then.get(grants) else ""


def _remember(kept: dict[str, _T], uid: str, what: _T) -> None:
    """Not more than a node can need."""
    kept.pop(uid, None)
    kept[uid] = what
    if len(kept) > _REMEMBERED:
        del kept[next(iter(kept))]
