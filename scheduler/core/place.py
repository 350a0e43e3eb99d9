"""Which cards of one node a pod gets. Plain integers: a node has few cards.

Cards of one ask are distinct. Of cards with room, binpack takes one that is in use already, and of
these the fullest, so that whole cards stay whole; spread takes the emptiest; ties go to the lowest
minor. Several cards of one ask are taken from one NVLink group if they can, else from one PCIe
root, else one NUMA node; from the group with the fewest cards to spare.

Containers are placed one by one, the greediest first; where that ends nowhere, a search over all
ways decides, so that what fits is found. Where the search gives up, what `fit` has found is taken,
however it ranks: on a node that `fit` has promised there are cards, whatever the policy.

A pod's shares of one card either all ask for core or none does: the allocation annotation has one
core limit per card and pod, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from scheduler.core.fleet import NO_GROUP, Fleet
from scheduler.core.placement import Peak, Placement, Share
from scheduler.core.reasons import Reason
from scheduler.core.request import WHOLE_PERCENT, Policy, Request, Scope
from scheduler.core.search import GaveUp, Search, Slot, Steps
from scheduler.core.together import assignment

FITS_BY: Final = Policy.BINPACK
"""Of requests that name no policy: by which `fit` looks, whatever they are placed by."""

_SLOT_COLUMNS: Final = (
    *("total_bytes", "used_bytes", "used_core", "is_open"),
    *("fullness", "free_bytes", "free_core", "takes_coreless"),
)
"""As they follow each other in `Slot`, the last ones that it must be given."""
_GROUPS: Final = ("link", "root", "numa")

_PART_OF: Final[Mapping[Scope, Callable[[Slot], int]]] = {
    Scope.NUMA_NODE: lambda slot: slot.groups[2],
    Scope.PCIE: lambda slot: slot.groups[1],
    Scope.DEVICE: lambda slot: slot.index,
}


def place(
    fleet: Fleet,
    request: Request,
    row: int,
    default: Policy = FITS_BY,
    steps: Steps | None = None,
) -> Placement | Reason:
    """The cards of the node at `row` for the request, or why there are none.

    default: the policy where the request names none. steps: what the search may take and has taken.
    """
    if fleet.bar[row]:
        return Reason(int(fleet.bar[row]))
    if request.isolation and not fleet.isolates[row]:
        return Reason.NOT_ISOLATING
    policy = request.policy or default
    found = _searched(fleet, request, row, policy, steps or Steps())
    if found is not Reason.GIVEN_UP:
        return found
    chosen = assignment(fleet, request, row)
    if chosen is not None:
        return _as_assigned(fleet, request, row, chosen)
    fits_by = request.policy or FITS_BY
    return found if policy is fits_by else _searched(fleet, request, row, fits_by, Steps())


def _searched(
    fleet: Fleet, request: Request, row: int, policy: Policy, steps: Steps
) -> Placement | Reason:
    gave_up = False
    for within in _within_scope(request.scope, _slots(fleet, request, row), policy):
        search = Search(request, policy, within, steps)
        try:
            found = search.greedy() or search.exact()
        except GaveUp:
            gave_up = True
            continue
        if found:
            return _placement(fleet, request, row, within)
    return Reason.GIVEN_UP if gave_up else Reason.TOGETHER


def _as_assigned(
    fleet: Fleet, request: Request, row: int, chosen: Mapping[int, Sequence[int]]
) -> Placement:
    slots = _slots(fleet, request, row)
    for number, cards in chosen.items():
        for slot in slots:
            if slot.index in cards:
                slot.add(number, request.asks[number], request.moments[number])
    return _placement(fleet, request, row, slots)


def _slots(fleet: Fleet, request: Request, row: int) -> Sequence[Slot]:
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
            slots.append(Slot(index, near, [0] * moments, [0] * moments, *values))
    return slots


def _within_scope(scope: Scope, slots: Sequence[Slot], policy: Policy) -> Iterator[Sequence[Slot]]:
    """The parts of the node in which all cards may lie, by the policy the best first."""
    if scope is Scope.NODE:
        if slots:
            yield slots
        return
    part_of = _PART_OF[scope]
    parts: dict[int, list[Slot]] = {}
    for slot in slots:
        part = part_of(slot)
        if part != NO_GROUP:
            parts.setdefault(part, []).append(slot)

    def emptiness(part: Sequence[Slot]) -> float:
        left = sum(1 - slot.fullness for slot in part)
        return -left if policy is Policy.SPREAD else left

    yield from sorted(parts.values(), key=emptiness)


def _placement(fleet: Fleet, request: Request, row: int, slots: Sequence[Slot]) -> Placement:
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


def _percent(request: Request, slot: Slot) -> int:
    held = [0] * len(slot.held_bytes)
    for number in slot.asks:
        percent = request.asks[number].memory_percent
        if percent is None:
            return max(slot.held_bytes) * WHOLE_PERCENT // slot.total_bytes
        for at in request.moments[number]:
            held[at] += percent
    return max(held)
