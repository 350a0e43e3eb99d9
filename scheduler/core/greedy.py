"""Chooses the GPUs of one node by a policy, container by container, without backtracking.

It uses plain integers, because a node has few GPUs. `scheduler.core.place` supplies the slots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scheduler.core.fleet import NO_GROUP
from scheduler.core.request import WHOLE_PERCENT, ContainerRequest, Policy, Request, largest_first


@dataclass(slots=True)
class Slot:
    """A GPU during the search. held_bytes[t], held_core[t]: what the pod's containers hold of it at
    moment t of the pod's life. uncapped: whether one of these shares requests no core."""

    index: int
    groups: tuple[int, int, int]
    """The GPU's NVLink group, PCIe root and NUMA node."""
    held_bytes: list[int]
    held_core: list[int]
    total_bytes: int
    free_bytes: int
    free_core: int
    takes_uncapped: bool
    is_open: bool
    fullness: float
    uncapped: bool = False
    containers: list[int] = field(default_factory=list)

    def fits(self, container: ContainerRequest, moments: Sequence[int]) -> bool:
        size, core = container.bytes_of(self.total_bytes), container.core_percent or 0
        uncapped, held_core = container.core_percent is None, max(self.held_core)
        # As between pods, a share that requests no core leaves at most 99 percent to the others.
        most_core = self.free_core - (uncapped or self.uncapped)
        if uncapped and (not self.takes_uncapped or 0 < held_core > most_core):
            return False
        for moment in moments:
            if self.held_bytes[moment] + size > self.free_bytes:
                return False
            if core and self.held_core[moment] + core > most_core:
                return False
        return True

    def add(self, number: int, container: ContainerRequest, moments: Sequence[int]) -> None:
        self.containers.append(number)
        self.uncapped |= container.core_percent is None
        size, core = container.bytes_of(self.total_bytes), container.core_percent or 0
        for moment in moments:
            self.held_bytes[moment] += size
            self.held_core[moment] += core

    def rank(
        self, container: ContainerRequest, policy: Policy, unused_near: tuple[int, ...]
    ) -> tuple[float, ...]:
        """Return the sort key of the GPU, where the least is the best. unused_near: the slot's
        value in the result of the function `unused_near`."""
        if policy is Policy.FIRST:
            return (self.index,)
        memory = (max(self.held_bytes) + container.bytes_of(self.total_bytes)) / self.total_bytes
        # Without the container's core, which adds the same to every GPU.
        full = self.fullness + (memory + max(self.held_core) / WHOLE_PERCENT) / 2
        if policy is Policy.SPREAD:
            return (full, self.index)
        return (not (self.is_open or self.containers), -full, *unused_near, self.index)


def unused_near(slots: Sequence[Slot]) -> Mapping[int, tuple[int, ...]]:
    """Count, for each slot index, the unused GPUs in the slot's NVLink group, PCIe root and NUMA
    node. Binpack prefers the fewest, to keep wholly unused groups for pods of several GPUs."""
    unused = Counter(
        (level, group)
        for slot in slots
        if not slot.is_open
        for level, group in enumerate(slot.groups)
        if group != NO_GROUP
    )
    return {slot.index: tuple(unused[each] for each in enumerate(slot.groups)) for slot in slots}


def place_greedily(request: Request, policy: Policy, slots: Sequence[Slot]) -> bool:
    """Place the containers on the slots, the largest first. Return False if one does not fit."""
    near = unused_near(slots)
    for number in largest_first(request, max(slot.total_bytes for slot in slots)):
        container, moments = request.containers[number], request.moments[number]
        fitting = [slot for slot in slots if slot.fits(container, moments)]
        fitting.sort(key=lambda slot: slot.rank(container, policy, near[slot.index]))
        if len(fitting) < container.gpus:
            return False
        for slot in _chosen(fitting, container.gpus, policy):
            slot.add(number, container, moments)
    return True


def _chosen(fitting: Sequence[Slot], wanted: int, policy: Policy) -> Sequence[Slot]:
    """Return `wanted` fitting slots that are near to each other. fitting: sorted by rank."""
    if wanted > 1 and policy is not Policy.FIRST:
        for level in range(3):
            near = _nearest(fitting, level, wanted)
            if near is not None:
                return near[:wanted]
    return fitting[:wanted]


def _nearest(fitting: Sequence[Slot], level: int, wanted: int) -> Sequence[Slot] | None:
    """Return the fitting slots of the smallest sufficient group. level: index in `groups`."""
    groups: dict[int, list[Slot]] = {}
    for slot in fitting:
        if slot.groups[level] != NO_GROUP:
            groups.setdefault(slot.groups[level], []).append(slot)
    enough = [group for group in groups.values() if len(group) >= wanted]
    # `min` returns the first of equal groups, which contains the best-ranked GPU.
    return min(enough, key=len) if enough else None
