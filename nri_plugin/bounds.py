"""The pods of this node as the API server has them: what they were granted, in the order of their
binding, and which of them were bound to a GPU that was full.

Pure: told by the watch, asked by whoever creates containers and writes totals. Kept is what says
what a pod was granted and what it asks for, of a node's pods, so its size is bounded by them. It
refuses by what it knows, and refuses nothing for what it does not know: the ledger does without.

The order in which pods were bound is that in which the watch told of them: a pod comes to it with
its binding. Of a list's pods, which come in no order, the time of their binding is known to the
second; a pod that was bound by nobody, but came with its node, is behind those.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from contract import allocation
from nri_plugin import ledger, origins, policy
from nri_plugin.errors import Reason, Refusal, Refused, refuse
from nri_plugin.ledger import Hold
from nri_plugin.model import Card, Pod
from nri_plugin.objects import Bound
from nri_plugin.totals import Entry

_T = TypeVar("_T")

_NEVER: Final = "~"
"""Behind every time."""
_CARDS_MAY_TELL: Final = frozenset(
    {Reason.CARD_UNKNOWN, Reason.CARD_MISMATCH, Reason.MEMORY_OUT_OF_RANGE}
)
"""What cannot be judged by the cards as they are: one has failed, or was replaced."""
_REMEMBERED: Final = 256


@dataclass(frozen=True, slots=True)
class Place:
    """In the order of binding: of which batch, and within it when and who."""

    batch: int
    scheduled: str
    uid: str


class Bounds:
    """Empty, until somebody tells."""

    def __init__(self) -> None:
        self.version = 0
        """Another one where what was granted to whom may have changed."""
        self._pods: dict[str, Bound] = {}
        self._places: dict[str, Place] = {}
        self._granted: dict[str, tuple[allocation.DeviceEntry, ...]] = {}
        self._batch = 0
        self._listing = False
        self.ask: Callable[[Pod], Awaitable[None]] | None = None
        """Finds out about a pod that the watch has not told of, and calls `vouch` or `deny`, or,
        where nobody answers, neither. None: nobody is there to be asked."""
        self._vouched: dict[str, Bound] = {}
        self._denied: dict[str, str] = {}
        self._gone: dict[str, None] = {}
        self._foreign: dict[str, Refusal] = {}
        self._claims: dict[str, tuple[Pod, tuple[Card, ...], Hold | None]] = {}
        self._over_for: object = None
        self._over: Mapping[str, Refusal] = {}

    def put(self, bound: Bound, listing: bool) -> None:
        """It is there, as it is now. listing: told by a list. One that has finished is gone."""
        uid = bound.pod.uid
        if bound.finished:
            self.lost(uid)
            return
        before = self._pods.get(uid)
        self._judge_origin(bound, before)
        self._denied.pop(uid, None)
        self._pods[uid] = bound
        if before is not None and before.pod == bound.pod:
            self._pods[uid] = replace(bound, pod=before.pod)
            return
        if uid not in self._places:
            if not (listing and self._listing):
                self._batch += 1
            self._listing = listing
            self._places[uid] = Place(self._batch, bound.scheduled or _NEVER, uid)
        self._granted[uid] = origins.gpus(bound.pod.annotations)
        self.version += 1

    def lost(self, uid: str) -> None:
        if self._pods.pop(uid, None) is not None:
            _remember(self._gone, uid, None)
            del self._places[uid], self._granted[uid]
            self._claims.pop(uid, None)
            self._foreign.pop(uid, None)
            self.version += 1

    def keep(self, uids: AbstractSet[str]) -> None:
        """No others are there; a list has ended."""
        self._listing = False
        self._vouched.clear()
        for uid in self._pods.keys() - uids:
            self.lost(uid)

    def asked(self) -> Mapping[str, int]:
        """By resource, what all of them ask for together."""
        total: dict[str, int] = {}
        for bound in self._pods.values():
            for key, amount in bound.asked.items():
                total[key] = total.get(key, 0) + amount
        return total

    def granted(self, listed: Iterable[Entry]) -> AbstractSet[str]:
        """The cards of which they were granted a share. listed: the Device's, since Koordinator may
        name a card by its minor alone."""
        by_minor = {entry.card.minor: entry.card.uuid for entry in listed}
        found = {
            entry.id or by_minor.get(entry.minor)
            for entries in self._granted.values()
            for entry in entries
        }
        return frozenset(uuid for uuid in found if uuid)

    def allocated(self) -> Mapping[str, Sequence[allocation.DeviceEntry]]:
        """By UID, what they were granted, if a scheduler may have written it."""
        return {uid: each for uid, each in self._granted.items() if uid not in self._foreign}

    # --- who is told a pod by the runtime

    def unknown(self, pod: Pod) -> bool:
        """Whether somebody can be asked about it, and has not been."""
        uid = pod.uid
        known = uid in self._pods or uid in self._vouched or uid in self._denied
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
        """As the watch tells it."""
        return self._pods.get(uid)

    def heard(self, uid: str) -> Bound | None:
        """As the watch tells it, or who was asked."""
        return self._pods.get(uid) or self._vouched.get(uid)

    def objection(
        self, pod: Pod, cards: Sequence[Card], holding: AbstractSet[str]
    ) -> Refusal | None:
        """Why a container of the pod, as the runtime tells of it, may not have its share."""
        if pod.uid in self._denied:
            return refuse(Reason.GRANT_UNCONFIRMED, problem=self._denied[pod.uid])
        bound = self.heard(pod.uid)
        if bound is None:
            return None
        foreign = self._origin(pod.uid)
        if foreign is not None:
            return foreign
        other = origins.differing(bound.pod.annotations, pod.annotations)
        if other:
            return refuse(Reason.GRANT_UNCONFIRMED, problem=f"annotation {other} differs there")
        return self.over(cards, holding).get(pod.uid)

    def foreign(self) -> Mapping[str, Refusal]:
        """By UID, pods whose grant no scheduler wrote; they are in nobody's way."""
        return self._foreign

    def _origin(self, uid: str) -> Refusal | None:
        """Why no scheduler wrote its grant; None: nothing says so."""
        if uid in self._pods:
            return self._foreign.get(uid)
        asked = self._vouched.get(uid)
        return _foreign(asked, None) if asked is not None else None

    def _judge_origin(self, bound: Bound, before: Bound | None) -> None:
        """Once it was found foreign, it stays so: what showed it may be put right afterwards."""
        uid, asked = bound.pod.uid, self._vouched.pop(bound.pod.uid, None)
        found = _foreign(bound, before) or (_foreign(bound, asked) if asked else None)
        if found is not None and uid not in self._foreign:
            self._foreign[uid] = found
            self.version += 1

    # --- what cannot be

    def over(self, cards: Sequence[Card], holding: AbstractSet[str]) -> Mapping[str, Refusal]:
        """By UID, the pods for which there was no room left when they were bound. holding: of whom
        containers hold a share already; they come first where the order is not known.

        A pod that has none has none of those that come behind it in its way.
        """
        asked_for = (self.version, tuple(cards), holding)
        if self._over_for != asked_for:
            self._over = self._find_over(cards, holding)
            self._over_for = asked_for
        return self._over

    def _find_over(self, cards: Sequence[Card], holding: AbstractSet[str]) -> Mapping[str, Refusal]:
        def in_order(uid: str) -> tuple[int, str, bool, str]:
            place = self._places[uid]
            return place.batch, place.scheduled, uid not in holding, uid

        whole = ledger.whole(cards)
        held = dict.fromkeys(whole, ledger.NOTHING)
        before: list[Hold] = []
        found: dict[str, Refusal] = {}
        for uid in sorted(self._granted.keys() - self._foreign.keys(), key=in_order):
            hold = self._claimed(uid, cards)
            if hold is None:
                continue
            if all(held[card].plus(part).within(whole[card]) for card, part in hold.parts.items()):
                held.update((card, held[card].plus(part)) for card, part in hold.parts.items())
                before.append(hold)
                continue
            shortage = ledger.short(Reason.GRANT_OVERFILLS, hold, before, whole)
            assert shortage is not None
            found[uid] = shortage.refusal()
        return found

    def _claimed(self, uid: str, cards: Sequence[Card]) -> Hold | None:
        """What the pod was granted; None: nothing that can be had. Remembered: reading it takes
        most of the time that a container waits here."""
        pod, key = self._pods[uid].pod, tuple(cards)
        seen = self._claims.get(uid)
        if seen is not None and seen[0] is pod and seen[1] == key:
            return seen[2]
        try:
            shares = policy.allocated(pod, cards) if self._granted[uid] else ()
        except Refused:  # a container of it is not made, whatever the reason
            shares = ()
        hold = ledger.hold(uid, uid, True, pod, "", shares) if shares else None
        self._claims[uid] = (pod, key, hold)
        return hold

    def doubt(self, hold: Hold, cards: Sequence[Card]) -> Refusal | None:
        """Why what a container holds is not what its pod was granted; None: it is, or it is not
        known."""
        bound = self.heard(hold.pod_uid)
        if bound is None:
            return None
        foreign = self._origin(hold.pod_uid) or _since(bound, hold)
        if foreign is not None:
            return foreign
        try:
            # A label that was put on a running pod changes nothing that it was granted.
            pod = replace(bound.pod, labels=hold.pod.labels)
            claimed = policy.claim(pod, hold.container, cards)
        except Refused as refused:
            if refused.refusal.reason in _CARDS_MAY_TELL:
                return _unnamed(hold, origins.gpus(bound.pod.annotations))
            return refuse(Reason.GRANT_UNCONFIRMED, problem=refused.refusal.text)
        granted = ledger.parts(claimed.shares if claimed else ())
        for uuid, part in hold.parts.items():
            has = granted.get(uuid, ledger.NOTHING)
            if not part.within(has):
                problem = (
                    f"container {hold.container} has {part.memory_bytes} bytes and"
                    f" {part.core_percent} percent of card {uuid}, granted are"
                    f" {has.memory_bytes} and {has.core_percent}"
                )
                return refuse(Reason.GRANT_UNCONFIRMED, problem=problem)
        return None


def _since(bound: Bound, hold: Hold) -> Refusal | None:
    """Why the grant was changed since the container was made; None: it was not, or the runtime has
    not told what it was."""
    problem = origins.changed(bound.pod.annotations, hold.pod.annotations)
    if not problem or not origins.granted(hold.pod.annotations):
        return None
    return refuse(Reason.GRANT_FOREIGN, problem=problem)


def _unnamed(hold: Hold, entries: Sequence[allocation.DeviceEntry]) -> Refusal | None:
    """A card that failed is still named by who was granted it."""
    named = {entry.id for entry in entries}
    others = [uuid for uuid in hold.parts if uuid not in named]
    if not others or None in named:
        return None
    problem = f"container {hold.container} has a part of card {others[0]}, granted is none of it"
    return refuse(Reason.GRANT_UNCONFIRMED, problem=problem)


def _foreign(bound: Bound, before: Bound | None) -> Refusal | None:
    problem = origins.foreign(bound, before)
    return refuse(Reason.GRANT_FOREIGN, problem=problem) if problem else None


def _remember(kept: dict[str, _T], uid: str, what: _T) -> None:
    """Not more than a node can need."""
    kept.pop(uid, None)
    kept[uid] = what
    if len(kept) > _REMEMBERED:
        del kept[next(iter(kept))]
