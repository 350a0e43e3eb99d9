"""Reservations of GPU capacity for pods that hold nothing yet. See docs/adr/0030.

Reservations are counted in the fleet's columns `reserved_*`, so later placements avoid them. A
reservation ends when its pod is bound or filtered again, at its deadline, or when its node changes
so that it no longer fits. Reservations make no pod unschedulable: if a pod fits nowhere, `lifted`
removes them temporarily for another try.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from scheduler.core.fleet import Fleet, GpuAmount, Rows
from scheduler.core.place import Placement
from scheduler.core.request import Request


class Kind(Enum):
    """Why the capacity is reserved, and for how many seconds at most."""

    RANKED = 2.0
    """`prioritize` ranked the node first. kube-scheduler sends the next pod's `filter` before this
    pod's `bind`, and would choose the same GPU for both. 2 s exceed the time from prioritize to
    bind unless another plugin delays the pod."""
    NOMINATED = 30.0
    """The pod was requeued with this node nominated. 30 s exceed kube-scheduler's backoff."""


@dataclass(frozen=True, slots=True)
class Reservation:
    owner: str
    request: Request
    placement: Placement
    kind: Kind
    deadline_s: float
    taken: Sequence[GpuAmount]


class Reservations:
    """All reservations, by owner, which is the pod's UID. Times are of the caller's clock."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._by_owner: dict[str, Reservation] = {}

    def __len__(self) -> int:
        return len(self._by_owner)

    def add(
        self, owner: str, request: Request, placement: Placement, kind: Kind, now_s: float
    ) -> None:
        """Add a reservation, and end the owner's earlier one. `place` must have found the placement
        in the current fleet."""
        self.end(owner)
        self._enter(Reservation(owner, request, placement, kind, now_s + kind.value, ()))

    def placement(self, owner: str, request: Request, node: str) -> Placement | None:
        """Return the placement reserved for this owner, request and node, or None."""
        reservation = self._by_owner.get(owner)
        if reservation is None or reservation.request != request:
            return None
        return reservation.placement if reservation.placement.node == node else None

    def nominated_node(self, owner: str) -> str:
        """Return the node nominated for the owner, on which GPUs are reserved; "" for none."""
        reservation = self._by_owner.get(owner)
        if reservation is None or reservation.kind is not Kind.NOMINATED:
            return ""
        return reservation.placement.node

    def end(self, owner: str) -> Placement | None:
        """End the owner's reservation and return its placement, or None."""
        reservation = self._by_owner.pop(owner, None)
        if reservation is None:
            return None
        self._count(reservation, -1)
        return reservation.placement

    def end_overdue(self, now_s: float) -> None:
        for owner in [o for o, each in self._by_owner.items() if each.deadline_s <= now_s]:
            self.end(owner)

    @contextmanager
    def changing(self, node: str) -> Iterator[None]:
        """Enclose a change of the node. Afterwards, end its reservations that no longer fit."""
        there = [each for each in self._by_owner.values() if each.placement.node == node]
        for each in there:
            self.end(each.owner)
        try:
            yield
        finally:
            for each in there:
                self._enter(each)

    @contextmanager
    def lifted(self, among: Rows) -> Iterator[Rows]:
        """Remove all reservations from the fleet until the exit. Yield which of the rows `among`
        have reservations. The enclosed code must not await, nor change the fleet."""
        there = list(self._by_owner.values())
        rows = np.unique(self._fleet.rows_of([each.placement.node for each in there]))
        for each in there:
            self._count(each, -1)
        try:
            yield among[np.isin(among, rows)]
        finally:
            for each in there:
                self._count(each, 1)

    def _enter(self, reservation: Reservation) -> None:
        """Add the reservation, if it still fits beside those added before it."""
        fleet, placement = self._fleet, reservation.placement
        row = fleet.row_of(placement.node)
        if fleet.blocked_by[row]:
            return
        taken = []
        for peak in placement.peaks:
            slot = fleet.slot_of(row, peak.uuid, peak.minor)
            if slot is None:
                return
            taken.append(GpuAmount(slot, peak.memory_bytes, peak.core_percent))
            if not fleet.fits(row, taken[-1]):
                return
        entered = replace(reservation, taken=tuple(taken))
        self._by_owner[entered.owner] = entered
        self._count(entered, 1)

    def _count(self, reservation: Reservation, sign: int) -> None:
        row = self._fleet.row_of(reservation.placement.node)
        for each in reservation.taken:
            self._fleet.reserve(row, each, sign)
