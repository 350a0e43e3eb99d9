"""Pods' shares of GPUs, as columns: an entry for each pod and GPU, of bound and of assumed pods.

The entries of any number of pods are found without a loop over them. An entry is reused once its
pod is gone; `written` shows whether it is still the one that was found.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scheduler.core.fleet import NO_CORE, GpuAmount, Rows

Entries = NDArray[np.intp]
"""Indices into the columns."""

_UNUSED: Final = np.iinfo(np.int64).max
_COLUMNS: Final[Sequence[tuple[str, Any, int]]] = (
    ("row", np.intp, 0),
    ("slot", np.intp, 0),
    ("memory_bytes", np.int64, 0),
    ("core_percent", np.int32, 0),
    ("written", np.int64, _UNUSED),
)
_SIZE: Final = 64


class Allocations:
    # [E]; row and slot: of the fleet's columns.
    row: Rows
    slot: Rows
    memory_bytes: NDArray[np.int64]
    core_percent: NDArray[np.int32]  # NO_CORE: the share requests none
    written: NDArray[np.int64]  # the value of `changes`; the largest number for an unused entry

    def __init__(self) -> None:
        self._entries: dict[str, tuple[int, ...]] = {}
        self._unused: list[int] = []
        self.changes = 0
        """Counts the calls of `put`."""
        self._grow(_SIZE)

    def put(self, uid: str, row: int, taken: Sequence[GpuAmount]) -> None:
        """Replaces what the pod holds."""
        self.pop(uid)
        self.changes += 1
        while len(self._unused) < len(taken):
            self._grow(2 * len(self.row))
        entries = tuple(self._unused.pop() for _ in taken)
        for entry, each in zip(entries, taken, strict=True):
            core = NO_CORE if each.core_percent is None else each.core_percent
            self.row[entry], self.slot[entry] = row, each.slot
            self.memory_bytes[entry], self.core_percent[entry] = each.memory_bytes, core
            self.written[entry] = self.changes
        self._entries[uid] = entries

    def amounts(self, uid: str) -> Sequence[GpuAmount]:
        """The pod's amounts; none for an unknown pod."""
        amounts = []
        for entry in self._entries.get(uid, ()):
            core = int(self.core_percent[entry])
            size = int(self.memory_bytes[entry])
            core_percent = None if core == NO_CORE else core
            amounts.append(GpuAmount(int(self.slot[entry]), size, core_percent))
        return amounts

    def pop(self, uid: str) -> Sequence[GpuAmount]:
        """Removes the pod's amounts, and returns them."""
        taken = self.amounts(uid)
        for entry in self._entries.pop(uid, ()):
            self.written[entry] = _UNUSED
            self._unused.append(entry)
        return taken

    def find(self, uids: Iterable[str]) -> tuple[Entries, NDArray[np.intp]]:
        """The entries of the pods, one pod after the other, and the number of each pod's."""
        entries = list(map(self._entries.get, uids, repeat(())))
        counts = np.fromiter(map(len, entries), np.intp, len(entries))
        return np.fromiter(chain.from_iterable(entries), np.intp), counts

    def _grow(self, size: int) -> None:
        had = 0
        for name, dtype, nothing in _COLUMNS:
            new = np.full(size, nothing, dtype)
            if (old := getattr(self, name, None)) is not None:
                had = len(old)
                new[:had] = old
            setattr(self, name, new)
        self._unused.extend(range(size - 1, had - 1, -1))
