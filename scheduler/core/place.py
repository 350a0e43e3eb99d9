"""Chooses the GPUs of one node for a pod, with plain integers, since a node has few GPUs.

Of the GPUs that fit, policy `binpack` takes the fullest one in use, and among equal ones the GPU
with the fewest unused neighbours. `spread` takes the emptiest. `first` takes the GPU of the lowest
minor, which also breaks all ties. The GPUs of one container are distinct. They are taken from one
NVLink group if possible, else from one PCIe root, else from one NUMA node. Of several such groups
the smallest sufficient one is taken. Containers are placed one by one, the largest first. If this
fails on a node where `fit` found a placement, that placement is used, whatever its rank.

If some of a pod's shares of one GPU request core and others do not, the pod has two peaks of the
GPU, because the allocation has at most one core limit per GPU and pod.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from numpy.typing import NDArray

from scheduler.core.fleet import NO_GROUP, Fleet
from scheduler.core.greedy import Slot, place_greedily, unused_near
from scheduler.core.reasons import Reason
from scheduler.core.request import WHOLE_PERCENT, Policy, Request, Scope
from scheduler.core.together import assignment

_GROUPS: Final = ("link", "root", "numa")
_SLOT_COLUMNS: Final = (
    *("total_bytes", "free_bytes", "free_core", "takes_uncapped", "is_open", "fullness"),
)
"""The columns that fill the last required fields of `Slot`, in the order of these fields."""

_PART_OF: Final[Mapping[Scope, Callable[[Slot], int]]] = {
    Scope.NUMA_NODE: lambda slot: slot.groups[2],
    Scope.PCIE: lambda slot: slot.groups[1],
    Scope.DEVICE: lambda slot: slot.index,
}


@dataclass(frozen=True, slots=True)
class Share:
    """A container's share of one GPU. core_percent: None if it requests no core."""

    container: str
    uuid: str
    minor: int
    memory_bytes: int
    core_percent: int | None


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that a pod's containers hold of one GPU at any moment. It is allocated all the time.
    memory_percent: the requested part of the GPU, rounded down, at most 100. core_percent: None if
    no share of the pod on this GPU requests core. If some request core and others do not, a second
    peak of 0 bytes without core stands for the others."""

    uuid: str
    minor: int
    memory_bytes: int
    memory_percent: int
    core_percent: int | None


@dataclass(frozen=True, slots=True)
class Placement:
    """The GPUs chosen for a pod. shares: by container as in the request, then by minor. peaks: by
    minor."""

    node: str
    shares: Sequence[Share]
    peaks: Sequence[Peak]


def place(
    fleet: Fleet, request: Request, row: int, default: Policy = Policy.BINPACK
) -> Placement | Reason:
    """Choose GPUs of the node at `row`. Return them, or the reason why the request does not fit.
    default: the policy if the request has none."""
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
        if place_greedily(request, policy, within):
            return _placement(fleet, request, row, within)
    if chosen is None:
        return Reason.TOGETHER
    slots = _slots(fleet, request, row)
    for number, gpus in chosen.items():
        for slot in slots:
            if slot.index in gpus:
                slot.add(number, request.containers[number], request.moments[number])
    return _placement(fleet, request, row, slots)


def _slots(fleet: Fleet, request: Request, row: int) -> Sequence[Slot]:
    """Return the usable GPUs that the request's selector matches."""

    def column(name: str) -> NDArray[Any]:
        values: NDArray[Any] = getattr(fleet, name)[row]
        return values

    usable = fleet.usable[row] & fleet.selected(request.selector, column)
    groups = zip(*(column(name).tolist() for name in _GROUPS), strict=True)
    values = zip(*(column(name).tolist() for name in _SLOT_COLUMNS), strict=True)
    moments = request.moment_count
    return [
        Slot(index, near, [0] * moments, [0] * moments, *value)
        for index, (near, value) in enumerate(zip(groups, values, strict=True))
        if usable[index]
    ]


def _within_scope(scope: Scope, slots: Sequence[Slot], policy: Policy) -> Iterator[Sequence[Slot]]:
    """Yield the parts of the node that the scope allows, the best first by the policy."""
    if scope is Scope.NODE:
        if slots:
            yield slots
        return
    parts: dict[int, list[Slot]] = {}
    for slot in slots:
        part = _PART_OF[scope](slot)
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
    gpus = fleet.gpus[row]
    shares = [
        Share(each.name, gpu.uuid, gpu.minor, each.bytes_of(gpu.total_bytes), each.core_percent)
        for number, each in enumerate(request.containers)
        for gpu in (gpus[slot.index] for slot in slots if number in slot.containers)
    ]
    peaks = []
    for slot in slots:
        if slot.containers:
            gpu, size, percent = gpus[slot.index], max(slot.held_bytes), _percent(request, slot)
            core = max(slot.held_core) or None
            peaks.append(Peak(gpu.uuid, gpu.minor, size, percent, core))
            if core and slot.uncapped:
                peaks.append(Peak(gpu.uuid, gpu.minor, 0, 0, None))
    return Placement(fleet.names[row], tuple(shares), tuple(peaks))


def _percent(request: Request, slot: Slot) -> int:
    """Return `Peak.memory_percent`. A requested ratio is used as it is, because its bytes are
    already rounded down: computed from them, the percentage could be one lower."""
    ratios = [Fraction()] * len(slot.held_bytes)
    in_bytes = [0] * len(slot.held_bytes)
    for number in slot.containers:
        container = request.containers[number]
        for moment in request.moments[number]:
            ratios[moment] += container.memory_ratio or 0
            in_bytes[moment] += container.memory_bytes or 0
    pairs = zip(ratios, in_bytes, strict=True)
    most = max(ratio + Fraction(size, slot.total_bytes) for ratio, size in pairs)
    return min(WHOLE_PERCENT, math.floor(most * WHOLE_PERCENT))
