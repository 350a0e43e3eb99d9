"""The search for GPUs of one node: containers onto slots, first greedily, then over all
combinations.

Plain integers: a node has few GPUs. `scheduler.core.place` supplies the slots. The search is
bounded, or a pod could block the scheduler, and it reports when it gives up. All callers take their
steps from one `Budget`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from scheduler.core.fleet import NO_GROUP, fullness
from scheduler.core.request import ContainerRequest, Policy, Request, largest_first

MOST_STEPS: Final = 250
"""Limit of the search on one node: some 8 ms."""
PER_SECOND: Final = 4_000
"""Steps of some 30 us each: an eighth of a core."""
QUEUE_PER_SECOND: Final = 400
"""Their part for the queue of unschedulable pods alone."""
MAX_A_CALL: Final = 2 * MOST_STEPS
"""Enough for the search on one node, however many containers and moments the request has."""
MIN_A_CALL: Final = 100


@dataclass(slots=True)
class Steps:
    """Steps that a search may take, and has taken."""

    most: int = MOST_STEPS
    taken: int = 0


class Budget:
    """A token bucket of search steps for all callers together; full at first.

    Requests of several containers need searches, whose cost tenants choose. A call gets MAX_A_CALL
    at most, so that none blocks the event loop for long, and PER_SECOND in the long run. A call of
    kube-scheduler gets at least MIN_A_CALL, so that one tenant's searches never prevent another's;
    kube-scheduler makes one such call at a time. QUEUE_PER_SECOND are only for the queue of
    unschedulable pods, so that constant filters of one tenant do not stop the search for another's
    waiting pods.
    """

    def __init__(self) -> None:
        self._left = float(PER_SECOND - QUEUE_PER_SECOND)
        self._left_of_queue = float(QUEUE_PER_SECOND)

    @property
    def left(self) -> int:
        return int(self._left)

    def refill(self, seconds: float) -> None:
        """Adds the steps for the elapsed time."""
        seconds, shared = max(0.0, seconds), PER_SECOND - QUEUE_PER_SECOND
        self._left = min(shared, self._left + seconds * shared)
        of_queue = self._left_of_queue + seconds * QUEUE_PER_SECOND
        self._left_of_queue = min(QUEUE_PER_SECOND, of_queue)

    @contextmanager
    def steps(self, at_most: int = MAX_A_CALL, at_least: int = MIN_A_CALL) -> Iterator[Steps]:
        """Steps for one call; those taken are deducted at its end."""
        given = Steps(min(at_most, max(at_least, int(self._left))))
        try:
            yield given
        finally:
            self._left = max(0.0, self._left - given.taken)

    @contextmanager
    def queue_steps(self) -> Iterator[Steps]:
        """Steps for one unschedulable pod: shared ones first, then those of the queue."""
        given = Steps(min(MAX_A_CALL, int(self._left + self._left_of_queue)))
        try:
            yield given
        finally:
            beyond = max(0.0, given.taken - self._left)
            self._left = max(0.0, self._left - given.taken)
            self._left_of_queue = max(0.0, self._left_of_queue - beyond)


@dataclass(slots=True)
class Slot:
    """A GPU during the search. At moment t of the pod's life its containers hold held_bytes[t] and
    held_core[t] of it. capped: whether they request core, None while none is placed on it."""

    index: int
    groups: tuple[int, int, int]
    """NVLink group, PCIe root, NUMA node."""
    held_bytes: list[int]
    held_core: list[int]
    total_bytes: int
    used_bytes: int
    used_core: int
    is_open: bool
    fullness: float
    free_bytes: int
    free_core: int
    takes_uncapped: bool
    capped: bool | None = None
    containers: list[int] = field(default_factory=list)

    def state(self) -> tuple[int, ...]:
        """Slots of equal state are interchangeable, apart from their neighbours."""
        capped = -1 if self.capped is None else int(self.capped)
        here = (self.total_bytes, self.free_bytes, self.free_core, int(self.takes_uncapped), capped)
        return (*here, *self.held_bytes, *self.held_core)

    def fits(self, container: ContainerRequest, moments: Sequence[int]) -> bool:
        size, core = container.bytes_of(self.total_bytes), container.core_percent
        if self.capped is not None and self.capped != (core is not None):
            return False
        if core is None and not self.takes_uncapped:
            return False
        for at in moments:
            if self.held_bytes[at] + size > self.free_bytes:
                return False
            if core is not None and self.held_core[at] + core > self.free_core:
                return False
        return True

    def add(self, number: int, container: ContainerRequest, moments: Sequence[int]) -> None:
        self.containers.append(number)
        self.capped = container.core_percent is not None
        self._change(container, moments, 1)

    def remove_last(self, container: ContainerRequest, moments: Sequence[int]) -> None:
        self.containers.pop()
        if not self.containers:
            self.capped = None
        self._change(container, moments, -1)

    def _change(self, container: ContainerRequest, moments: Sequence[int], sign: int) -> None:
        size, core = container.bytes_of(self.total_bytes), container.core_percent or 0
        for at in moments:
            self.held_bytes[at] += sign * size
            self.held_core[at] += sign * core

    def rank(
        self, container: ContainerRequest, policy: Policy, unused_near: tuple[int, ...]
    ) -> tuple[bool, float, tuple[int, ...], int]:
        """Sort key; the least is the best. unused_near: from `unused_near`."""
        full = fullness(
            self.used_bytes + max(self.held_bytes) + container.bytes_of(self.total_bytes),
            self.total_bytes,
            self.used_core + max(self.held_core) + (container.core_percent or 0),
        )
        if policy is Policy.FIRST:
            return (False, 0, (), self.index)
        if policy is Policy.SPREAD:
            return (False, full, (), self.index)
        return (not (self.is_open or self.containers), -full, unused_near, self.index)


def unused_near(slots: Sequence[Slot]) -> Mapping[int, tuple[int, ...]]:
    """By index, the numbers of unused GPUs of the slot's NVLink group, PCIe root and NUMA node.
    Choosing the fewest keeps wholly unused groups for pods of several GPUs."""
    unused = Counter(
        (level, group)
        for slot in slots
        if not slot.is_open
        for level, group in enumerate(slot.groups)
        if group != NO_GROUP
    )
    return {slot.index: tuple(unused[each] for each in enumerate(slot.groups)) for slot in slots}


def _distinct(
    slots: Sequence[Slot],
    states: Sequence[tuple[int, ...]],
    count: int,
    start: int = 0,
    left_out: frozenset[tuple[int, ...]] = frozenset(),
) -> Iterator[tuple[Slot, ...]]:
    """Every choice of `count` slots from `start` on, best first; one only of those of equal states.

    Where a slot is left out, the later ones of its state are, too: 16 equal GPUs have one choice of
    8 and not 12,870, each of which would cost time that no step counts.
    """
    if not count:
        yield ()
        return
    for at in range(start, len(slots) - count + 1):
        if states[at] in left_out:
            continue
        for others in _distinct(slots, states, count - 1, at + 1, left_out):
            yield (slots[at], *others)
        left_out |= {states[at]}


class SearchLimitError(Exception):
    """The search exceeded its steps."""


class Search:
    """One node, one request; slots are the usable ones."""

    def __init__(
        self, request: Request, policy: Policy, slots: Sequence[Slot], steps: Steps
    ) -> None:
        self._request = request
        self._policy = policy
        self._slots = slots
        self._steps = steps
        self._unused_near = unused_near(slots)
        self._order = largest_first(request, max(slot.total_bytes for slot in slots))

    def greedy(self) -> bool:
        """Places all containers, or leaves the slots unchanged."""
        placed: list[tuple[int, Sequence[Slot]]] = []
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
        """As `greedy`, over all combinations. Raises SearchLimitError."""
        return not self._is_too_much() and self._from(0)

    def _is_too_much(self) -> bool:
        """Whether all GPUs together have less than what is requested at some moment. Then no search
        succeeds; this detects most infeasible requests."""
        containers, moments = self._request.containers, self._request.moments
        smallest = min(slot.total_bytes for slot in self._slots)
        free_bytes = sum(slot.free_bytes for slot in self._slots)
        free_core = sum(slot.free_core for slot in self._slots)
        for moment in range(self._request.moment_count):
            alive = [
                container for container, at in zip(containers, moments, strict=True) if moment in at
            ]
            size = sum(container.gpus * container.bytes_of(smallest) for container in alive)
            core = sum(container.gpus * (container.core_percent or 0) for container in alive)
            if size > free_bytes or core > free_core:
                return True
        return False

    def _from(self, position: int) -> bool:
        if position == len(self._order):
            return True
        number = self._order[position]
        for chosen in self._ways(number):
            if self._steps.taken >= self._steps.most:
                raise SearchLimitError
            self._steps.taken += 1
            self._add(number, chosen)
            if self._from(position + 1):
                return True
            self._remove(number, chosen)
        return False

    def _ways(self, number: int) -> Iterator[Sequence[Slot]]:
        """Every choice of GPUs for a container, but only one of equivalent choices."""
        fitting = self._ranked(number)
        states = [slot.state() for slot in fitting]
        yield from _distinct(fitting, states, self._request.containers[number].gpus)

    def _choose(self, number: int) -> Sequence[Slot] | None:
        wanted = self._request.containers[number].gpus
        fitting = self._ranked(number)
        if len(fitting) < wanted:
            return None
        if wanted > 1 and self._policy is not Policy.FIRST:
            for level in range(3):
                near = _nearest(fitting, level, wanted)
                if near is not None:
                    return near[:wanted]
        return fitting[:wanted]

    def _ranked(self, number: int) -> list[Slot]:
        container, moments = self._request.containers[number], self._request.moments[number]
        fitting = [slot for slot in self._slots if slot.fits(container, moments)]
        near = self._unused_near
        return sorted(
            fitting, key=lambda slot: slot.rank(container, self._policy, near[slot.index])
        )

    def _add(self, number: int, chosen: Sequence[Slot]) -> None:
        for slot in chosen:
            slot.add(number, self._request.containers[number], self._request.moments[number])

    def _remove(self, number: int, chosen: Sequence[Slot]) -> None:
        for slot in chosen:
            slot.remove_last(self._request.containers[number], self._request.moments[number])


def _nearest(fitting: Sequence[Slot], level: int, wanted: int) -> Sequence[Slot] | None:
    """The GPUs of the group that has enough of them and the fewest to spare."""
    groups: dict[int, list[Slot]] = {}
    for slot in fitting:
        if slot.groups[level] != NO_GROUP:
            groups.setdefault(slot.groups[level], []).append(slot)
    enough = [group for group in groups.values() if len(group) >= wanted]
    # Among equal ones the first, which contains the best-ranked GPU.
    return min(enough, key=len) if enough else None
