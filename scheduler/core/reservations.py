"""Reservations of GPU capacity for pods that hold nothing yet. See docs/adr/0030.

A reservation is counted in the fleet's columns `reserved_*`, in addition to what is used, so later
placements avoid it. It ends with its pod's binding or next filter, at its deadline, and when its
node changes so that it no longer fits. It makes no pod unschedulable: if a pod fits nowhere,
`lifted` shows the fleet without reservations.
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
    """`prioritize` ranked the node first. It sends `filter` of the next pod before
    `bind` of this one, and both would be ranked to the same GPU. Longer than from prioritize to
    bind, unless the pod waits for something else."""
    NOMINATED = 30.0
    """The pod is requeued with this node nominated. Longer than kube-scheduler's backoff."""


@dataclass(frozen=True, slots=True)
class Reservation:
    owner: str
    request: Request
    placement: Placement
    kind: Kind
    deadline_s: float
    taken: Sequence[GpuAmount]


class Reservations:
    """See the module. Times are the caller's."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._by_owner: dict[str, Reservation] = {}

    def __len__(self) -> int:
        return len(self._by_owner)

    def add(
        self, owner: str, request: Request, placement: Placement, kind: Kind, now_s: float
    ) -> None:
        """Replaces the owner's reservation. `place` must have found the placement beside all that
        is used and reserved."""
        self.end(owner)
        self._enter(Reservation(owner, request, placement, kind, now_s + kind.value, ()))

    def placement(self, owner: str, request: Request, node: str) -> Placement | None:
        """The reservation for this owner, request and node."""
        reservation = self._by_owner.get(owner)
        if reservation is None or reservation.request != request:
            return None
        return reservation.placement if reservation.placement.node == node else None

    def nominated_node(self, owner: str) -> str:
        """The node that is nominated for the pod, while GPUs are reserved there; "" for none."""
        reservation = self._by_owner.get(owner)
        if reservation is None or reservation.kind is not Kind.NOMINATED:
            return ""
        return reservation.placement.node

    def end(self, owner: str) -> Placement | None:
        """Ends the owner's reservation and returns its placement."""
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
        """Encloses a change of the node; afterwards its reservations that still fit are kept."""
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
        """The fleet without reservations; yields the rows that have some. Within it, await nothing
        and change nothing."""
        there = list(self._by_owner.values())
        if not there:
            yield among[:0]
            return
        rows = np.unique(self._fleet.rows_of([each.placement.node for each in there]))
        for each in there:
            self._count(each, -1)
        try:
            yield among[np.isin(among, rows)]
        finally:
            for each in there:
                self._count(each, 1)

    def _enter(self, reservation: Reservation) -> None:
        """Enter it if it fits, in the order of arrival."""
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
