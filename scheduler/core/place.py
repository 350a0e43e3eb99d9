"""Which cards of one node a pod gets. Plain integers: a node has few cards.

Cards of one ask are distinct. Of cards with room, binpack takes one that is in use already, and of
these the fullest, so that whole cards stay whole; spread takes the emptiest; ties go to the lowest
minor. Several cards of one ask are taken from one NVLink group if they can, else from one PCIe
root, else one NUMA node; from the group with the fewest cards to spare.

Containers are placed one by one, the greediest first; where that ends nowhere, a search over all
ways decides, so that what fits is found. The search is bounded, or a pod could halt the scheduler:
where it gives up, it says so.

A pod's shares of one card either all ask for core or none does: the allocation annotation has one
core limit per card and pod, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Final

from scheduler.core.fleet import NO_GROUP, Fleet, fullness
from scheduler.core.placement import Peak, Placement, Share
from scheduler.core.reasons import Reason
from scheduler.core.request import WHOLE_PERCENT, Ask, Policy, Request, Scope, by_greed

MOST_STEPS: Final = 2_000
"""Of the search on one node: tens of milliseconds."""


@dataclass(slots=True)
class Steps:
    """How many steps a search may take, and has taken."""

    most: int = MOST_STEPS
    taken: int = 0


_SLOT_COLUMNS: Final = (
    *("total_bytes", "used_bytes", "used_core", "is_open"),
    *("fullness", "free_bytes", "free_core", "takes_coreless"),
)
"""As they follow each other in `_Slot`, the last ones that it must be given."""
_GROUPS: Final = ("link", "root", "numa")


@dataclass(slots=True)
class _Slot:
    """A card during the search. At moment t of the pod's life its containers hold held_bytes[t] and
    held_core[t] of it; capped: whether they ask for core, None while none is here."""

    index: int
    groups: tuple[int, int, int]
    """Link, PCIe root, NUMA node."""
    held_bytes: list[int]
    held_core: list[int]
    total_bytes: int
    used_bytes: int
    used_core: int
    is_open: bool
    fullness: float
    free_bytes: int
    free_core: int
    takes_coreless: bool
    capped: bool | None = None
    asks: list[int] = field(default_factory=list)

    def state(self) -> tuple[int, ...]:
        """Slots of equal state are as good as each other, but for their neighbours."""
        capped = -1 if self.capped is None else int(self.capped)
        here = (self.total_bytes, self.free_bytes, self.free_core, int(self.takes_coreless), capped)
        return (*here, *self.held_bytes, *self.held_core)

    def has_room(self, ask: Ask, moments: Sequence[int]) -> bool:
        size, core = ask.bytes_of(self.total_bytes), ask.core_percent
        if self.capped is not None and self.capped != (core is not None):
            return False
        if core is None and not self.takes_coreless:
            return False
        for at in moments:
            if self.held_bytes[at] + size > self.free_bytes:
                return False
            if core is not None and self.held_core[at] + core > self.free_core:
                return False
        return True

    def add(self, number: int, ask: Ask, moments: Sequence[int]) -> None:
        self.asks.append(number)
        self.capped = ask.core_percent is not None
        self._change(ask, moments, 1)

    def remove_last(self, ask: Ask, moments: Sequence[int]) -> None:
        self.asks.pop()
        if not self.asks:
            self.capped = None
        self._change(ask, moments, -1)

    def _change(self, ask: Ask, moments: Sequence[int], sign: int) -> None:
        size, core = ask.bytes_of(self.total_bytes), ask.core_percent or 0
        for at in moments:
            self.held_bytes[at] += sign * size
            self.held_core[at] += sign * core

    def rank(self, ask: Ask, policy: Policy) -> tuple[bool, float, int]:
        """The least is the best."""
        full = fullness(
            self.used_bytes + max(self.held_bytes) + ask.bytes_of(self.total_bytes),
            self.total_bytes,
            self.used_core + max(self.held_core) + (ask.core_percent or 0),
        )
        if policy is Policy.SPREAD:
            return (False, full, self.index)
        return (not (self.is_open or self.asks), -full, self.index)


_PART_OF: Final[Mapping[Scope, Callable[[_Slot], int]]] = {
    Scope.NUMA_NODE: lambda slot: slot.groups[2],
    Scope.PCIE: lambda slot: slot.groups[1],
    Scope.DEVICE: lambda slot: slot.index,
}


class _GaveUp(Exception):
    """The search took too many steps."""


class _Search:
    """One node, one request; slots are those that may be used."""

    def __init__(
        self, request: Request, policy: Policy, slots: Sequence[_Slot], steps: Steps
    ) -> None:
        self._request = request
        self._policy = policy
        self._slots = slots
        self._steps = steps
        self._order = by_greed(request, max(slot.total_bytes for slot in slots))

    def greedy(self) -> bool:
        """Place all, or leave the slots as they were."""
        placed: list[tuple[int, Sequence[_Slot]]] = []
        for number in self._order:
            chosen = self._choose(number)
            if chosen is None:
                for other, slots in reversed(placed):
                    self._remove(other, slots)
                return False
            self._add(number, chosen)
            placed.append((number, chosen))
        return True

    def exact(self) -> bool:
        """As greedy, over all ways. Raises _GaveUp."""
        return not self._is_too_much() and self._from(0)

    def _is_too_much(self) -> bool:
        """Whether all cards together have not what is asked for in some moment: no search finds
        room then, and most that would find none is seen here."""
        asks, moments = self._request.asks, self._request.moments
        smallest = min(slot.total_bytes for slot in self._slots)
        free_bytes = sum(slot.free_bytes for slot in self._slots)
        free_core = sum(slot.free_core for slot in self._slots)
        for moment in range(self._request.moment_count):
            alive = [ask for ask, at in zip(asks, moments, strict=True) if moment in at]
            size = sum(ask.cards * ask.bytes_of(smallest) for ask in alive)
            core = sum(ask.cards * (ask.core_percent or 0) for ask in alive)
            if size > free_bytes or core > free_core:
                return True
        return False

    def _from(self, position: int) -> bool:
        if position == len(self._order):
            return True
        number = self._order[position]
        for chosen in self._ways(number):
            if self._steps.taken >= self._steps.most:
                raise _GaveUp
            self._steps.taken += 1
            self._add(number, chosen)
            if self._from(position + 1):
                return True
            self._remove(number, chosen)
        return False

    def _ways(self, number: int) -> Iterator[Sequence[_Slot]]:
        """Every choice of cards for an ask, but one only of those that come to the same."""
        ask = self._request.asks[number]
        roomy = self._ranked(number)
        seen: set[tuple[tuple[int, ...], ...]] = set()
        for chosen in combinations(roomy, ask.cards):
            key = tuple(sorted(slot.state() for slot in chosen))
            if key not in seen:
                seen.add(key)
                yield chosen

    def _choose(self, number: int) -> Sequence[_Slot] | None:
        wanted = self._request.asks[number].cards
        roomy = self._ranked(number)
        if len(roomy) < wanted:
            return None
        if wanted > 1:
            for level in range(3):
                near = _nearest(roomy, level, wanted)
                if near is not None:
                    return near[:wanted]
        return roomy[:wanted]

    def _ranked(self, number: int) -> list[_Slot]:
        ask, moments = self._request.asks[number], self._request.moments[number]
        roomy = [slot for slot in self._slots if slot.has_room(ask, moments)]
        return sorted(roomy, key=lambda slot: slot.rank(ask, self._policy))

    def _add(self, number: int, chosen: Sequence[_Slot]) -> None:
        for slot in chosen:
            slot.add(number, self._request.asks[number], self._request.moments[number])

    def _remove(self, number: int, chosen: Sequence[_Slot]) -> None:
        for slot in chosen:
            slot.remove_last(self._request.asks[number], self._request.moments[number])


def _nearest(roomy: Sequence[_Slot], level: int, wanted: int) -> Sequence[_Slot] | None:
    """The cards of the group that has enough of them and the fewest to spare."""
    groups: dict[int, list[_Slot]] = {}
    for slot in roomy:
        if slot.groups[level] != NO_GROUP:
            groups.setdefault(slot.groups[level], []).append(slot)
    enough = [group for group in groups.values() if len(group) >= wanted]
    # Of equals the first: the one that holds the best-ranked card.
    return min(enough, key=len) if enough else None


def place(
    fleet: Fleet,
    request: Request,
    row: int,
    default: Policy = Policy.BINPACK,
    steps: Steps | None = None,
) -> Placement | Reason:
    """The cards of the node at `row` for the request, or why there are none.

    default: the policy where the request names none. steps: what the search may take and has taken.
    """
    if fleet.bar[row]:
        return Reason(int(fleet.bar[row]))
    if request.isolation and not fleet.isolates[row]:
        return Reason.NOT_ISOLATING
    slots = _slots(fleet, request, row)
    policy = request.policy or default
    steps = steps or Steps()
    gave_up = False
    for within in _within_scope(request.scope, slots, policy):
        search = _Search(request, policy, within, steps)
        try:
            found = search.greedy() or search.exact()
        except _GaveUp:
            gave_up = True
            continue
        if found:
            return _placement(fleet, request, row, within)
    return Reason.GIVEN_UP if gave_up else Reason.TOGETHER


def _slots(fleet: Fleet, request: Request, row: int) -> Sequence[_Slot]:
    moments = request.moment_count
    selected = fleet.selected(request.selector) if request.selector else None
    slots = []

    def column(name: str) -> list[Any]:
        there: list[Any] = getattr(fleet, name)[row].tolist()
        return there

    cards = zip(*map(column, _SLOT_COLUMNS), strict=True)
    groups = zip(*map(column, _GROUPS), strict=True)
    open_to_us = zip(column("usable"), column("label_set"), cards, groups, strict=True)
    for index, (usable, labels, values, near) in enumerate(open_to_us):
        if usable and (selected is None or selected[labels]):
            slots.append(_Slot(index, near, [0] * moments, [0] * moments, *values))
    return slots


def _within_scope(
    scope: Scope, slots: Sequence[_Slot], policy: Policy
) -> Iterator[Sequence[_Slot]]:
    """The parts of the node in which all cards may lie, by the policy the best first."""
    if scope is Scope.NODE:
        if slots:
            yield slots
        return
    part_of = _PART_OF[scope]
    parts: dict[int, list[_Slot]] = {}
    for slot in slots:
        part = part_of(slot)
        if part != NO_GROUP:
            parts.setdefault(part, []).append(slot)

    def emptiness(part: Sequence[_Slot]) -> float:
        left = sum(1 - slot.fullness for slot in part)
        return -left if policy is Policy.SPREAD else left

    yield from sorted(parts.values(), key=emptiness)


def _placement(fleet: Fleet, request: Request, row: int, slots: Sequence[_Slot]) -> Placement:
    shares, peaks = [], []
    cards = fleet.cards[row]
    for number, ask in enumerate(request.asks):
        for slot in slots:
            if number in slot.asks:
                card = cards[slot.index]
                size = ask.bytes_of(card.total_bytes)
                shares.append(Share(ask.container, card.uuid, card.minor, size, ask.core_percent))
    for slot in slots:
        if slot.asks:
            card = cards[slot.index]
            peaks.append(
                Peak(
                    card.uuid,
                    card.minor,
                    max(slot.held_bytes),
                    _percent(request, slot),
                    max(slot.held_core) if slot.capped else None,
                )
            )
    return Placement(fleet.names[row], tuple(shares), tuple(peaks))


def _percent(request: Request, slot: _Slot) -> int:
    held = [0] * len(slot.held_bytes)
    for number in slot.asks:
        percent = request.asks[number].memory_percent
        if percent is None:
            return max(slot.held_bytes) * WHOLE_PERCENT // slot.total_bytes
        for at in request.moments[number]:
            held[at] += percent
    return max(held)
