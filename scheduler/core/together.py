"""Decides which nodes fit a pod of several containers, by one greedy pass over all nodes at once.

A node's result does not depend on the other nodes, so `assignment` finds the same GPUs for one
node. The pass is not exhaustive: it may miss a combination that fits. Shapes: see columns.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from scheduler.core.columns import Columns
from scheduler.core.fleet import Bools, Fleet, Rows
from scheduler.core.request import ContainerRequest, Policy, Request, largest_first


def together(fleet: Fleet, request: Request, rows: Rows) -> Bools:
    """[R]: nodes on which the containers fit, placed one by one. Each is placed on the GPU with the
    least free memory that fits it, or by policy FIRST on the first GPU that fits it."""
    fits = np.zeros(len(rows), np.bool_)
    for order, indices in _orders(fleet, request, rows):
        for tried in _passes(fleet, request, rows[indices]):
            fits[indices] |= tried.all_placed(order)
    return fits


def assignment(fleet: Fleet, request: Request, row: int) -> Mapping[int, Sequence[int]] | None:
    """Return the slots that `together` finds on this node, by index of the container, or None."""
    rows = np.array([row], np.intp)
    ((order, _),) = _orders(fleet, request, rows)
    for tried in _passes(fleet, request, rows):
        if tried.all_placed(order)[0]:
            return {number: [int(gpu[0]) for gpu in tried.chosen[number]] for number in order}
    return None


def _orders(
    fleet: Fleet, request: Request, rows: Rows
) -> Iterator[tuple[Sequence[int], NDArray[np.intp]]]:
    """Yield each order of the containers, the largest first, with the indices in `rows` of its
    nodes. The order differs by node, see `largest_first`."""
    largest, which = np.unique(fleet.total_bytes[rows].max(axis=1), return_inverse=True)
    sizes_of: dict[tuple[int, ...], list[int]] = {}
    for number, largest_bytes in enumerate(largest.tolist()):
        sizes_of.setdefault(tuple(largest_first(request, largest_bytes)), []).append(number)
    for order, numbers in sizes_of.items():
        yield order, np.flatnonzero(np.isin(which, numbers))


def _passes(fleet: Fleet, request: Request, rows: Rows) -> Iterator[_Pass]:
    columns = Columns(fleet, request, rows, gather=True)
    for part in columns.parts():
        yield _Pass(columns, part)


class _Pass:
    """One try on one part of each node. held_bytes, held_core: [moments, G, R]. peak_bytes,
    peak_core: [G, R], their maximum. uncapped: [G, R], whether one of the pod's shares of the GPU
    requests no core. chosen: for each container a list of its GPUs, each [R]; undefined for a node
    where not all containers are placed."""

    def __init__(self, columns: Columns, part: Bools | None) -> None:
        self._columns = columns
        self._request: Request = columns.request
        self._part = part
        self._total = columns.gpu("total_bytes")
        self._free_bytes = columns.gpu("free_bytes")
        self._free_core = columns.gpu("free_core").astype(np.int64)
        moments = self._request.moment_count
        self._held_bytes = np.zeros((moments, *self._total.shape), np.int64)
        self._held_core = np.zeros((moments, *self._total.shape), np.int64)
        self._peak_bytes = np.zeros(self._total.shape, np.int64)
        self._peak_core = np.zeros(self._total.shape, np.int64)
        self._uncapped = np.zeros(self._total.shape, np.bool_)
        self.chosen: dict[int, list[NDArray[np.intp]]] = {}

    def all_placed(self, order: Sequence[int]) -> Bools:
        """[R]: nodes on which all containers were placed, in this order."""
        placed = np.ones(self._total.shape[1], np.bool_)
        for number in order:
            placed &= self._placed(number)
        return placed

    def _placed(self, number: int) -> Bools:
        container: ContainerRequest = self._request.containers[number]
        moments = self._request.moments[number]
        taken = self.chosen[number] = []
        size = np.broadcast_to(self._columns.needed(container), self._total.shape)
        uncapped, core = container.core_percent is None, container.core_percent or 0
        fitting = self._columns.fitting(container)
        # As between pods, a share that requests no core leaves at most 99 percent to the others.
        most_core = self._free_core - (self._uncapped | uncapped)
        if uncapped:
            fitting &= (self._peak_core == 0) | (self._peak_core <= most_core)
        if self._part is not None:
            fitting &= self._part
        for moment in moments:
            fitting &= self._held_bytes[moment] + size <= self._free_bytes
            if not uncapped:
                fitting &= self._held_core[moment] + core <= most_core
        left = self._free_bytes - self._peak_bytes
        if self._request.policy is Policy.FIRST:
            left = np.zeros_like(left)
        nodes = np.arange(self._total.shape[1])
        every = np.ones(len(nodes), np.bool_)
        for _ in range(container.gpus):
            chosen = np.where(fitting, left, np.iinfo(np.int64).max).argmin(0)
            taken.append(chosen)
            here = fitting[chosen, nodes]
            every &= here
            gpus, on = chosen[here], nodes[here]
            self._uncapped[gpus, on] |= uncapped
            self._put(gpus, on, size, core, moments)
            fitting[gpus, on] = False
        return every

    def _put(
        self,
        gpus: NDArray[np.intp],
        nodes: NDArray[np.intp],
        size: NDArray[np.int64],
        core: int,
        moments: tuple[int, ...],
    ) -> None:
        here = gpus, nodes
        for moment in moments:
            for held, peak, amount in (
                (self._held_bytes[moment], self._peak_bytes, size[here]),
                (self._held_core[moment], self._peak_core, core),
            ):
                held[here] += amount
                peak[here] = np.maximum(peak[here], held[here])
