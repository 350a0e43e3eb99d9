"""Chooses the GPUs of one node for a pod. Plain integers, since a node has few GPUs.

GPUs of one container are distinct. Among GPUs that fit, binpack takes one that is in use, and the
fullest of these, to keep whole GPUs free; among equal ones, one whose NVLink group, PCIe root and
NUMA node are in use, to keep these free too. Spread takes the emptiest. Ties are broken by the
lowest minor, which alone decides for first. Otherwise several GPUs of one container are taken from
one NVLink group if possible, else from one PCIe root, else one NUMA node; from the group with the
fewest GPUs to spare.

Containers are placed one by one, the largest first. A pod of several is placed where `fit` found
that it fits. If these rules find no place there, the placement of `fit` is used, whatever its rank.

A pod's shares of one GPU either all request core or none does: the allocation annotation has one
core limit per GPU and pod, or none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from scheduler.core.fleet import NO_GROUP, Fleet
from scheduler.core.greedy import Greedy, Slot, unused_near
from scheduler.core.reasons import Reason
from scheduler.core.request import WHOLE_PERCENT, Policy, Request, Scope
from scheduler.core.together import assignment

_SLOT_COLUMNS: Final = (
    *("total_bytes", "used_bytes", "used_core", "is_open"),
    *("fullness", "free_bytes", "free_core", "takes_uncapped"),
)
"""In the order of `Slot`'s fields, of which they are the last required ones."""
_RESERVED: Final = {"used_bytes": "reserved_bytes", "used_core": "reserved_core"}
"""Columns to which the reserved ones are added."""
_GROUPS: Final = ("link", "root", "numa")

_PART_OF: Final[Mapping[Scope, Callable[[Slot], int]]] = {
    Scope.NUMA_NODE: lambda slot: slot.groups[2],
    Scope.PCIE: lambda slot: slot.groups[1],
    Scope.DEVICE: lambda slot: slot.index,
}


@dataclass(frozen=True, slots=True)
class Share:
    """A container's share of one GPU; core_percent None: none was requested."""

    container: str
    uuid: str
    minor: int
    memory_bytes: int
    core_percent: int | None


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that a pod holds of one GPU at any moment of its life; it is held throughout.

    memory_percent: the floor of what was requested, as ratios and in bytes; at most 100.
    core_percent None: none of its shares of this GPU requests core.
    """

    uuid: str
    minor: int
    memory_bytes: int
    memory_percent: int
    core_percent: int | None


@dataclass(frozen=True, slots=True)
class Placement:
    """The GPUs chosen for a pod. shares: in the order of the request's containers, each by minor.
    peaks: by minor."""

    node: str
    shares: Sequence[Share]
    peaks: Sequence[Peak]


def place(
    fleet: Fleet, request: Request, row: int, default: Policy = Policy.BINPACK
) -> Placement | Reason:
    """The GPUs of the node at `row` for the request, or the reason why none fit. default: the
    policy if the request has none."""
    if fleet.blocked_by[row]:
        return Reason(int(fleet.blocked_by[row]))
    if request.isolation and not fleet.isolates[row]:
        return Reason.NOT_ISOLATING
    if request.whole_gpus > 1 and fleet.partitioned[row]:
        return Reason.PARTITIONED
    policy, slots, chosen = request.policy or default, _slots(fleet, request, row), None
    if len(request.containers) > 1:
        chosen = assignment(fleet, request, row) if slots else None
        if chosen is None:
            return Reason.TOGETHER
    for within in _within_scope(request.scope, slots, policy):
        if Greedy(request, policy, within).place():
            return _placement(fleet, request, row, within)
    return Reason.TOGETHER if chosen is None else _as_assigned(fleet, request, row, chosen)


def _as_assigned(
    fleet: Fleet, request: Request, row: int, chosen: Mapping[int, Sequence[int]]
) -> Placement:
    slots = _slots(fleet, request, row)
    for number, gpus in chosen.items():
        for slot in slots:
            if slot.index in gpus:
                slot.add(number, request.containers[number], request.moments[number])
    return _placement(fleet, request, row, slots)


def _slots(fleet: Fleet, request: Request, row: int) -> Sequence[Slot]:
    moments = request.moment_count
    slots = []

    def column(name: str) -> list[Any]:
        values = getattr(fleet, name)[row]
        if name in _RESERVED:
            values = values + getattr(fleet, _RESERVED[name])[row]
        there: list[Any] = values.tolist()
        return there

    usable = fleet.usable[row]
    if request.selector:
        selector = request.selector
        usable = usable & fleet.selected(selector, lambda name: getattr(fleet, name)[row])
    gpus = zip(*map(column, _SLOT_COLUMNS), strict=True)
    groups = zip(*map(column, _GROUPS), strict=True)
    open_to_us = zip(usable.tolist(), gpus, groups, strict=True)
    for index, (is_open, values, near) in enumerate(open_to_us):
        if is_open:
            slots.append(Slot(index, near, [0] * moments, [0] * moments, *values))
    return slots


def _within_scope(scope: Scope, slots: Sequence[Slot], policy: Policy) -> Iterator[Sequence[Slot]]:
    """The parts of the node that may contain all GPUs, the best first by the policy."""
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

    near = unused_near(slots)

    def emptiness(part: Sequence[Slot]) -> tuple[float, tuple[int, ...]]:
        if policy is Policy.FIRST:
            return (part[0].index, ())
        left = sum(1 - slot.fullness for slot in part)
        if policy is Policy.SPREAD:
            return (-left, ())
        return (left, min(near[slot.index] for slot in part))

    yield from sorted(parts.values(), key=emptiness)


def _placement(fleet: Fleet, request: Request, row: int, slots: Sequence[Slot]) -> Placement:
    shares, peaks = [], []
    gpus = fleet.gpus[row]
    for number, container in enumerate(request.containers):
        for slot in slots:
            if number in slot.containers:
                gpu = gpus[slot.index]
                size = container.bytes_of(gpu.total_bytes)
                shares.append(
                    Share(container.name, gpu.uuid, gpu.minor, size, container.core_percent)
                )
    for slot in slots:
        if slot.containers:
            gpu = gpus[slot.index]
            peaks.append(
                Peak(
                    gpu.uuid,
                    gpu.minor,
                    max(slot.held_bytes),
                    _percent(request, slot),
                    max(slot.held_core) if slot.capped else None,
                )
            )
    return Placement(fleet.names[row], tuple(shares), tuple(peaks))


def _percent(request: Request, slot: Slot) -> int:
    """See `Peak`. A requested ratio is used as it is: its bytes are rounded down, and converting
    them back would round down again and may give one percent less."""
    ratios = [Fraction()] * len(slot.held_bytes)
    in_bytes = [0] * len(slot.held_bytes)
    for number in slot.containers:
        container = request.containers[number]
        for at in request.moments[number]:
            ratios[at] += container.memory_ratio or 0
            in_bytes[at] += container.memory_bytes or 0
    pairs = zip(ratios, in_bytes, strict=True)
    most = max(ratio + Fraction(size, slot.total_bytes) for ratio, size in pairs)
    return min(WHOLE_PERCENT, math.floor(most * WHOLE_PERCENT))
