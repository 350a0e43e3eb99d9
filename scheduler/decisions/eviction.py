"""Computes the fleet without the victims of a preemption.

Victims are added in parts, and the state may change between two parts. A victim whose holdings have
changed since the first part frees nothing. One operation on the columns releases all victims.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

from scheduler.core.allocations import Allocations, Entries
from scheduler.core.fleet import Fleet


class Eviction:
    def __init__(self, fleet: Fleet, allocations: Allocations) -> None:
        self._fleet = fleet
        self._allocations = allocations
        self._began = allocations.changes
        self._found: list[Entries] = []

    def add(self, victims: Mapping[str, Sequence[str]]) -> None:
        """Add victims, as UIDs of pods by node. A pod without a share on that node is ignored."""
        rows = self._fleet.rows_of(victims)
        per_node = np.fromiter(map(len, victims.values()), np.intp, len(rows))
        entries, per_pod = self._allocations.find(chain.from_iterable(victims.values()))
        rows_of_entries = np.repeat(np.repeat(rows, per_node), per_pod)
        self._found.append(entries[self._allocations.row[entries] == rows_of_entries])

    def remaining(self) -> Fleet:
        """Return the fleet without the victims and without reservations; see `Fleet.without`."""
        allocations = self._allocations
        is_gone = np.zeros(len(allocations.row), np.bool_)
        for entries in self._found:
            is_gone[entries] = True  # a pod that is a victim twice is released once
        gone = np.flatnonzero(is_gone & (allocations.written <= self._began))
        amounts = allocations.memory_bytes[gone], allocations.core_percent[gone]
        return self._fleet.without(allocations.row[gone], allocations.slot[gone], *amounts)
