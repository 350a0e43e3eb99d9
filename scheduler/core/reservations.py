"""What is set aside on GPUs for pods that hold nothing yet.

A reservation has an owner (a pod's UID), a kind and a deadline, and stands in the fleet's columns
`reserved_*`, beside what is used: whatever is placed meanwhile is placed beside it. Kinds differ in
what may overrule them. NOMINATED is where the extender expects kube-scheduler to bind the pod next:
kube-scheduler sends `filter` of the next pod before `bind` of the last one, and both would be
ranked to the same GPU. It refuses no pod: for one that finds no room, `lifted` shows the fleet
without such reservations, and ends none of them.

A reservation ends with its pod's binding or its next filter, at its deadline, and when its node
changes so that it has no room there any more. Part of `scheduler.state`, which reports changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

import numpy as np

from scheduler.core.fleet import Fleet, Rows
from scheduler.core.place import Placement
from scheduler.core.request import Request

NOMINATED_S: Final = 2.0
"""Longer than from prioritize to bind, unless the pod waits for something else."""


class Kind(Enum):
    """Why GPUs are reserved. A gang's and a queue's will be others, which `lifted` keeps."""

    NOMINATED = "nominated"


@dataclass(frozen=True, slots=True)
class Taken:
    """Of the GPU in this slot of the node's row; core_percent None: its share asks for none."""

    slot: int
    memory_bytes: int
    core_percent: int | None


@dataclass(frozen=True, slots=True)
class Reservation:
    owner: str
    kind: Kind
    request: Request
    placement: Placement
    deadline_s: float
    taken: Sequence[Taken]


class Reservations:
    """See the module. Times are the caller's."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._by_owner: dict[str, Reservation] = {}

    def __len__(self) -> int:
        return len(self._by_owner)

    def add(
        self,
        owner: str,
        request: Request,
        placement: Placement,
        deadline_s: float,
        kind: Kind = Kind.NOMINATED,
    ) -> None:
        """In place of the owner's last one. The placement must be what `place` found beside all
        that is used and reserved."""
        self.end(owner)
        self._enter(Reservation(owner, kind, request, placement, deadline_s, ()))

    def placement(self, owner: str, request: Request, node: str) -> Placement | None:
        """What is reserved there, for just this."""
        found = self._by_owner.get(owner)
        if found is None or found.placement.node != node or found.request != request:
            return None
        return found.placement

    def end(self, owner: str) -> Placement | None:
        """What was reserved for it."""
        found = self._by_owner.pop(owner, None)
        if found is None:
            return None
        self._count(found, -1)
        return found.placement

    def end_overdue(self, now_s: float) -> None:
        for owner in [o for o, each in self._by_owner.items() if each.deadline_s <= now_s]:
            self.end(owner)

    @contextmanager
    def changing(self, node: str) -> Iterator[None]:
        """Around a change of the node: of its reservations, those stay that have room after it."""
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
        """The fleet without NOMINATED reservations; those of the rows that have some. Await nothing
        within, and change nothing."""
        there = [each for each in self._by_owner.values() if each.kind is Kind.NOMINATED]
        if not there:
            yield among[:0]
            return
        fleet = self._fleet
        rows = np.unique(fleet.rows_of([each.placement.node for each in there]))
        versions = fleet.version[rows]
        for each in there:
            self._count(each, -1)
        try:
            yield among[np.isin(among, rows)]
        finally:
            for each in there:
                self._count(each, 1)
            # The nodes are as they were: what is known of them holds.
            fleet.version[rows] = versions

    def _enter(self, reservation: Reservation) -> None:
        """If there is room, in the order in which they came."""
        fleet, placement = self._fleet, reservation.placement
        row = fleet.row_of(placement.node)
        if fleet.bar[row]:
            return
        taken = []
        for peak in placement.peaks:
            slot = fleet.slot_of(row, peak.uuid, peak.minor)
            if slot is None or not fleet.has_room(row, slot, peak.memory_bytes, peak.core_percent):
                return
            taken.append(Taken(slot, peak.memory_bytes, peak.core_percent))
        entered = replace(reservation, taken=tuple(taken))
        self._by_owner[entered.owner] = entered
        self._count(entered, 1)

    def _count(self, reservation: Reservation, sign: int) -> None:
        row = self._fleet.row_of(reservation.placement.node)
        change = self._fleet.reserve if sign > 0 else self._fleet.unreserve
        for each in reservation.taken:
            change(row, each.slot, each.memory_bytes, each.core_percent)
