"""Several containers at once: a greedy pass over all nodes together.

What it finds, is there; where it finds nothing, `scheduler.core.place` has to look.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from scheduler.core.columns import Columns, bytes_of
from scheduler.core.fleet import Bools
from scheduler.core.request import Ask, Request, by_greed

_NOBODY: Final = -1


def together(columns: Columns) -> Bools:
    """[R]: nodes on which the containers, placed one by one, each on the fullest card with room,
    all find some."""
    found = np.zeros(len(columns.bar), np.bool_)
    largest = int(columns.card("total_bytes").max(initial=1))
    order = by_greed(columns.request, largest)
    for part in columns.parts():
        found |= _Pass(columns, part).all_placed(order)
    return found


class _Pass:
    """held_bytes, held_core: [moments, G, R]. capped: [G, R], whether the pod's shares of the card
    ask for core; -1 while it has none."""

    def __init__(self, columns: Columns, part: Bools | None) -> None:
        self._columns = columns
        self._request: Request = columns.request
        self._part = part
        self._total = columns.card("total_bytes")
        self._free_bytes = columns.card("free_bytes")
        self._free_core = columns.card("free_core")
        moments = self._request.moment_count
        self._held_bytes = np.zeros((moments, *self._total.shape), np.int64)
        self._held_core = np.zeros((moments, *self._total.shape), np.int64)
        self._capped = np.full(self._total.shape, _NOBODY, np.int8)

    def all_placed(self, order: list[int]) -> Bools:
        """[R]."""
        placed = np.ones(self._total.shape[1], np.bool_)
        for number in order:
            placed &= self._placed(self._request.asks[number], self._request.moments[number])
        return placed

    def _placed(self, ask: Ask, moments: tuple[int, ...]) -> Bools:
        size = bytes_of(ask, self._total)
        capped, core = int(ask.core_percent is not None), ask.core_percent or 0
        room = self._columns.room(ask)
        room &= (self._capped == _NOBODY) | (self._capped == capped)
        if self._part is not None:
            room &= self._part
        for at in moments:
            room &= self._held_bytes[at] + size <= self._free_bytes
            if capped:
                room &= self._held_core[at] + core <= self._free_core
        left = self._free_bytes - self._held_bytes.max(0)
        nodes = np.arange(self._total.shape[1])
        every = np.ones(len(nodes), np.bool_)
        for _ in range(ask.cards):
            chosen = np.where(room, left, np.iinfo(np.int64).max).argmin(0)
            here = room[chosen, nodes]
            every &= here
            cards, on = chosen[here], nodes[here]
            self._put(cards, on, size, core, capped, moments)
            room[cards, on] = False
        return every

    def _put(
        self,
        cards: NDArray[np.intp],
        nodes: NDArray[np.intp],
        size: NDArray[np.int64],
        core: int,
        capped: int,
        moments: tuple[int, ...],
    ) -> None:
        self._capped[cards, nodes] = capped
        for at in moments:
            self._held_bytes[at][cards, nodes] += size[cards, nodes]
            self._held_core[at][cards, nodes] += core
