"""What bound and assumed pods hold of GPUs, as columns with one entry for each pod and GPU.

`find` returns the entries of many pods without a Python loop. An entry is reused once its pod is
gone. A caller that keeps an entry compares `written` to learn whether it was reused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scheduler.core.fleet import NO_CORE, GpuAmount, Rows

Entries = NDArray[np.intp]
"""Indices of entries in the columns."""

_UNUSED: Final = np.iinfo(np.int64).max
_COLUMNS: Final[Mapping[str, Any]] = {
    "row": np.intp,
    "slot": np.intp,
    "memory_bytes": np.int64,
    "core_percent": np.int32,
    "written": np.int64,
}
_SIZE: Final = 64


class Allocations:
    # Each column has the shape [entries]. row, slot: the GPU's indices in the fleet's columns.
    row: Rows
    slot: Rows
    memory_bytes: NDArray[np.int64]
    core_percent: NDArray[np.int32]  # NO_CORE: the share requests no core
    written: NDArray[np.int64]  # `changes` when the entry was put; _UNUSED once its pod is gone

    def __init__(self) -> None:
        self._entries: dict[str, tuple[int, ...]] = {}
        self._unused: list[int] = []
        self.changes = 0
        """The number of calls of `put`."""
        self._grow(_SIZE)

    def put(self, uid: str, row: int, taken: Sequence[GpuAmount]) -> None:
        """Replace the pod's entries by these amounts."""
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
        """Return the pod's amounts; () for an unknown pod."""
        amounts = []
        for entry in self._entries.get(uid, ()):
            core = int(self.core_percent[entry])
            size = int(self.memory_bytes[entry])
            core_percent = None if core == NO_CORE else core
            amounts.append(GpuAmount(int(self.slot[entry]), size, core_percent))
        return amounts

    def pop(self, uid: str) -> Sequence[GpuAmount]:
        """Remove and return the pod's amounts."""
        taken = self.amounts(uid)
        for entry in self._entries.pop(uid, ()):
            self.written[entry] = _UNUSED
            self._unused.append(entry)
        return taken

    def find(self, uids: Iterable[str]) -> tuple[Entries, NDArray[np.intp]]:
        """Return the entries of all these pods in order, and the number of entries of each pod."""
        entries = list(map(self._entries.get, uids, repeat(())))
        counts = np.fromiter(map(len, entries), np.intp, len(entries))
        return np.fromiter(chain.from_iterable(entries), np.intp), counts

    def _grow(self, size: int) -> None:
        had = 0
        for name, dtype in _COLUMNS.items():
            new = np.zeros(size, dtype)
            if (old := getattr(self, name, None)) is not None:
                had = len(old)
                new[:had] = old
            setattr(self, name, new)
        self._unused.extend(range(had, size))
