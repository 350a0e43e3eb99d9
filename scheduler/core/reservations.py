"""Reservations of GPU capacity for pods that hold nothing yet. See docs/adr/0030.

Reservations are counted in the fleet's columns `reserved_*`, so a pod of equal or lower priority
cannot get that capacity. `lifted` removes them temporarily for a pod of higher priority. A
reservation ends when its pod is bound, filtered again or gone, at its deadline, or when its node
changes so that it no longer fits. Of the reservations of a node, those of higher priority stay.

A nomination reserves GPUs of its node that are free, or that become free once the leaving pods are
gone. These are reserved while the leaving pods still hold them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar

import numpy as np

from scheduler.core.fleet import Fleet, GpuAmount, Rows
from scheduler.core.place import Placement, place
from scheduler.core.request import Request


class Kind(Enum):
    """Why the capacity is reserved, and for how many seconds at most."""

    RANKED = 600.0
    """`prioritize` ranked the node first, so kube-scheduler binds the pod there, once the pod's
    volumes and other conditions are ready. kube-scheduler waits as long for volumes."""
    SAMPLED = 30.0
    """The pod was requeued with this node nominated. 30 s exceed kube-scheduler's backoff."""
    NOMINATED = math.inf
    """The pod has a `Nomination`, which has a deadline of its own."""


@dataclass(frozen=True, slots=True)
class Nomination:
    """A node that kube-scheduler keeps for a pod. victims: UIDs of pods of the node that it deletes
    for this pod."""

    node: str
    request: Request
    priority: int
    victims: Collection[str] = ()
    deadline_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Reservation:
    owner: str
    request: Request
    placement: Placement
    kind: Kind
    priority: int
    deadline_s: float
    taken: Sequence[GpuAmount] = ()

    @property
    def node(self) -> str:
        return self.placement.node


_T = TypeVar("_T", Nomination, Reservation)


class _Owned(dict[str, _T]):
    """Values by owner, and those of each node. A call of `preempt` reads the latter of each node,
    while there may be as many as pods that wait for a volume. Change it by `put` and `take` only.
    """

    def __init__(self) -> None:
        self.on: dict[str, dict[str, _T]] = {}

    def put(self, owner: str, value: _T) -> None:
        self[owner] = self.on.setdefault(value.node, {})[owner] = value

    def take(self, owner: str) -> _T | None:
        value = self.pop(owner, None)
        if value is not None:
            del self.on[value.node][owner]
            if not self.on[value.node]:
                del self.on[value.node]
        return value

    def of(self, node: str) -> list[tuple[str, _T]]:
        """Return the owners and values of the node, the oldest first."""
        return list(self.on.get(node, {}).items())


class Reservations:
    """All reservations, by owner, which is the pod's UID. Times are of the caller's clock. leaving:
    returns what the leaving pods of a node hold; among these are the victims of `victims_on`."""

    def __init__(self, fleet: Fleet, leaving: Callable[[str], Sequence[GpuAmount]]) -> None:
        self._fleet = fleet
        self._leaving = leaving
        self._by_owner = _Owned[Reservation]()
        self._nominations = _Owned[Nomination]()

    def __len__(self) -> int:
        return len(self._by_owner)

    def add(
        self,
        owner: str,
        request: Request,
        placement: Placement,
        kind: Kind,
        priority: int,
        now_s: float,
    ) -> None:
        """Add a reservation, and end the owner's earlier one. `place` must have found the placement
        in the current fleet, or while reservations of lower priority were lifted."""
        ended = self.release(owner)
        added = Reservation(owner, request, placement, kind, priority, now_s + kind.value)
        if not self._enter(added):
            with self.changing(placement.node) as there:
                there.append(added)
        if ended is not None:
            self.renew(ended.node)

    def placement(self, owner: str, request: Request, node: str) -> Placement | None:
        """Return the free GPUs reserved for this owner, request and node, or None."""
        found = self._by_owner.get(owner)
        if found is None or found.kind is Kind.NOMINATED or found.request != request:
            return None
        return found.placement if found.node == node else None

    def sampled_node(self, owner: str) -> str:
        """Return the node of the owner's reservation of kind SAMPLED; "" for none."""
        found = self._by_owner.get(owner)
        return "" if found is None or found.kind is not Kind.SAMPLED else found.node

    def end(self, owner: str) -> None:
        """End the owner's reservation. If the owner has a nomination, call `restore` later: until
        then no nomination gets these GPUs."""
        if (ended := self.release(owner)) and owner not in self._nominations:
            self.renew(ended.node)

    def release(self, owner: str) -> Placement | None:
        """End the owner's reservation and return its placement, or None. `renew` its node then."""
        found = self._by_owner.get(owner)
        if found is None:
            return None
        self._leave(found)
        self._fleet.note_freed(self._fleet.row_of(found.node))
        return found.placement

    def end_overdue(self, now_s: float) -> None:
        """End the nominations and reservations whose deadline has passed, the latter with their
        nominations."""
        for owner in [o for o, each in self._nominations.items() if each.deadline_s <= now_s]:
            self.nominate(owner, None)
        for owner in [o for o, each in self._by_owner.items() if each.deadline_s <= now_s]:
            self.forget(owner)

    def forget(self, owner: str) -> None:
        """End the owner's reservation and nomination."""
        self.nominate(owner, None)
        self.end(owner)

    # --- nominations

    def nominate(self, owner: str, nomination: Nomination | None) -> None:
        """Replace the owner's nomination. GPUs are reserved unless the owner has a reservation. If
        kube-scheduler nominates another node than the one ranked first, it will bind there."""
        before = self._nominations.take(owner)
        found = self._by_owner.get(owner)
        if found is not None and found.kind is Kind.NOMINATED:
            self.release(owner)
        if nomination is not None:
            if before is not None and before.node == nomination.node:
                deadline_s = max(before.deadline_s, nomination.deadline_s)
                victims = nomination.victims or before.victims
                nomination = replace(nomination, victims=victims, deadline_s=deadline_s)
            if found is not None and found.kind is Kind.RANKED and found.node != nomination.node:
                nomination = replace(nomination, deadline_s=found.deadline_s)
                self.release(owner)
            self._nominations.put(owner, nomination)
        for node in {each.node for each in (before, found, nomination) if each is not None}:
            with self.changing(node):  # also ends reservations of GPUs whose holders now stay
                pass

    def restore(self, owner: str) -> None:
        """Reserve GPUs for the nominations of the owner's nominated node that have none."""
        if nomination := self._nominations.get(owner):
            self.renew(nomination.node)

    def renew(self, node: str) -> None:
        """Reserve GPUs for those nominations of the node that have no reservation."""
        if not self._by_owner.keys() >= self._nominations.on.get(node, {}).keys():
            with self.changing(node):
                pass

    def victims_on(self, node: str) -> Iterator[str]:
        """Yield the UIDs of pods that kube-scheduler deletes for pods nominated to the node."""
        for _, each in self._nominations.of(node):
            yield from each.victims

    def nominated_nodes(self) -> Collection[str]:
        return self._nominations.on.keys()

    # --- changes of the fleet

    @contextmanager
    def lifted(self, among: Rows, priority: int, owners: Collection[str] = ()) -> Iterator[Rows]:
        """Remove the reservations of lower priority and those of `owners`, at least from the rows
        `among`, until the exit. Yield which of these rows have such reservations. The enclosed code
        must not await, nor change the fleet."""
        there_on = self._by_owner.on
        if len(among) < len(there_on):
            names = (self._fleet.names[row] for row in among.tolist())
            there_on = {name: there_on.get(name, {}) for name in names}
        there = [
            each
            for owned in there_on.values()
            for each in owned.values()
            if each.priority < priority or each.owner in owners
        ]
        for each in there:
            self._count(each, -1)
        try:
            nodes = {each.node for each in there}
            yield among[np.isin(among, self._fleet.rows_of(nodes))] if there else among[:0]
        finally:
            for each in there:
                self._count(each, 1)

    @contextmanager
    def changing(self, node: str) -> Iterator[list[Reservation]]:
        """Enclose a change of the node. Yield its reservations, to which the caller may add. At the
        exit, enter these by priority where they still fit, and reserve GPUs for nominations. Of
        equal ones the oldest is first."""
        there = [each for _, each in self._by_owner.of(node)]
        for each in there:
            self._leave(each)
        try:
            yield there
        finally:
            has_ended = False
            waiting: list[tuple[str, Reservation | Nomination]]
            waiting = [*((each.owner, each) for each in there), *self._nominations.of(node)]
            for owner, one in sorted(waiting, key=lambda pair: -pair[1].priority):
                if isinstance(one, Reservation):
                    has_ended |= not self._enter(one)
                elif owner not in self._by_owner:
                    self._enter_nomination(owner, one)
            if has_ended:
                self._fleet.note_freed(self._fleet.row_of(node))

    def _enter_nomination(self, owner: str, nomination: Nomination) -> None:
        fleet, row = self._fleet, self._fleet.row_of(nomination.node)
        if fleet.blocked_by[row]:
            return
        found = place(fleet, nomination.request, row)
        if not isinstance(found, Placement):
            with fleet.vacated(row, self._leaving(nomination.node)):
                found = place(fleet, nomination.request, row)
        if isinstance(found, Placement):
            terms = (Kind.NOMINATED, nomination.priority, math.inf)
            self._enter(Reservation(owner, nomination.request, found, *terms))

    def _enter(self, reservation: Reservation) -> bool:
        """Add the reservation, if it still fits beside those added before it."""
        fleet, row, taken = self._fleet, self._fleet.row_of(reservation.node), list[GpuAmount]()
        if fleet.blocked_by[row]:
            return False
        is_nominated = reservation.kind is Kind.NOMINATED
        with fleet.vacated(row, self._leaving(reservation.node) if is_nominated else ()):
            for peak in reservation.placement.peaks:
                slot = fleet.slot_of(row, peak.uuid, peak.minor)
                if slot is None:
                    return False
                taken.append(GpuAmount(slot, peak.memory_bytes, peak.core_percent))
                if not fleet.fits(row, taken[-1]):
                    return False
        entered = replace(reservation, taken=tuple(taken))
        self._by_owner.put(entered.owner, entered)
        self._count(entered, 1)
        return True

    def _leave(self, reservation: Reservation) -> None:
        self._by_owner.take(reservation.owner)
        self._count(reservation, -1)

    def _count(self, reservation: Reservation, sign: int) -> None:
        row = self._fleet.row_of(reservation.node)
        for each in reservation.taken:
            self._fleet.reserve(row, each, sign)
