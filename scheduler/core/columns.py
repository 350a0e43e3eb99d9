"""The fleet's columns for some nodes, and tests of one container against them. Shapes are [G, R] or
[R], where G is the number of GPUs of a node and R the number of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scheduler.core.fleet import NO_GROUP, Bools, Fleet, Rows
from scheduler.core.reasons import Reason
from scheduler.core.request import ContainerRequest, Request, Scope

Reasons = NDArray[np.uint8]
"""The number of a Reason for each node, [R]."""

_FITS: Final = np.uint8(Reason.FITS)
"""A numpy number, because a comparison with the enum would convert the array to objects."""
_GROUP_COLUMN: Final = {Scope.PCIE: "root", Scope.NUMA_NODE: "numa"}


class Columns:
    """The fleet's columns for the given rows. If these are more than half of all rows, the columns
    of all rows are used uncopied (`whole`), and the caller selects the rows of the result."""

    def __init__(self, fleet: Fleet, request: Request, rows: Rows, gather: bool = False) -> None:
        self._fleet = fleet
        self.request = request
        self._rows = rows
        self._count = len(fleet.names)
        self.whole = not gather and 2 * len(rows) > self._count
        selector = request.selector
        self._selected = fleet.selected(selector, self.gpu) if selector else None
        self.blocked_by: Reasons = self._node(fleet.blocked_by)
        self.isolates: Bools = self._node(fleet.isolates)
        self.partitioned: Bools = self._node(fleet.partitioned)

    def nodes(self) -> Bools:
        """[R]: nodes that accept the pod, apart from the capacity of their GPUs."""
        open_to_us: Bools = self.blocked_by == _FITS
        if self.request.isolation:
            open_to_us &= self.isolates
        return open_to_us & ~self.partitioned if self.request.whole_gpus > 1 else open_to_us

    def selected(self) -> Bools:
        """[G, R]: GPUs that the selector matches."""
        there: Bools = self.gpu("total_bytes") > 0
        return there if self._selected is None else there & self._selected

    def fitting(self, container: ContainerRequest) -> Bools:
        """[G, R]: GPUs on which this container fits if it is the pod's only one. All are usable: an
        unusable GPU has no free byte, and a container requests at least one."""
        memory, core = self.ok(container)
        memory &= core
        if self._selected is not None:
            memory &= self._selected
        return memory

    def enough(self, gpus: Bools, wanted: int) -> Bools:
        """[R]: nodes of which one part (see `parts`) has at least `wanted` of these GPUs."""
        scope = self.request.scope
        if scope in _GROUP_COLUMN:
            group = self.gpu(_GROUP_COLUMN[scope])
            return largest_group(gpus, group) >= wanted
        if scope is Scope.DEVICE and wanted > 1:
            return np.zeros(gpus.shape[1], np.bool_)
        if wanted == 1:
            some: Bools = np.logical_or.reduce(gpus, axis=0)
            return some
        return ~_fewer(gpus, wanted)

    def parts(self) -> Sequence[Bools | None]:
        """Return the parts of the nodes as masks [G, R]. The request's scope determines the parts.
        All GPUs of a pod must be in one part. None: the whole node."""
        scope = self.request.scope
        if scope is Scope.NODE:
            return (None,)
        if scope is Scope.DEVICE:
            slots = np.arange(self.gpu("usable").shape[0])
            return [(slots == slot)[:, np.newaxis] for slot in slots]
        group = self.gpu(_GROUP_COLUMN[scope])
        return [group == one for one in range(int(group.max(initial=NO_GROUP)) + 1)]

    def reasons(self, container: ContainerRequest) -> Reasons:
        """[R]: why this container does not fit, even as the pod's only one. FITS if it fits."""
        wanted = container.gpus
        total, usable = self.gpu("total_bytes"), self.gpu("usable")
        memory, core = self.ok(container)
        there: Bools = total > 0
        selected = self.selected()
        large = selected & (total >= self.needed(container))
        fine = large & usable
        memory &= fine
        core &= fine
        reason = np.zeros(total.shape[1], np.uint8)
        # In reverse order of precedence: a later assignment overrides an earlier one.
        steps = (
            (~self.enough(memory & core, wanted), Reason.SCOPE),
            (_fewer(memory & core, wanted), _of_both(wanted)),
            (_fewer(core, wanted), Reason.CORE if wanted == 1 else Reason.GPUS),
            (_fewer(memory, wanted), Reason.MEMORY if wanted == 1 else Reason.GPUS),
            (_fewer(memory, wanted) & _fewer(core, wanted), _of_both(wanted)),
            (_fewer(fine, wanted), Reason.NO_USABLE_GPU),
            (_fewer(large, wanted), Reason.GPU_TOO_SMALL),
            (_fewer(selected, wanted), Reason.NO_GPU_SELECTED),
            (_fewer(there, wanted), Reason.TOO_FEW_GPUS),
        )
        for where, what in steps:
            reason[where] = what
        return reason

    def ok(self, container: ContainerRequest) -> tuple[Bools, Bools]:
        """Return two masks [G, R]: GPUs with enough free memory, GPUs with enough free core."""
        memory: Bools = self.gpu("free_bytes") >= self.needed(container)
        if container.core_percent is None:
            core: Bools = self.gpu("takes_uncapped")
            return memory, core.copy()
        return memory, self.gpu("free_core") >= container.core_percent

    def needed(self, container: ContainerRequest) -> NDArray[np.int64] | int:
        """Return the bytes requested of each GPU, [G, R], or one number if equal for all GPUs. A
        slot without a GPU never has that many bytes."""
        if container.memory_ratio is None:
            assert container.memory_bytes is not None
            return container.memory_bytes
        size = self._fleet.sizes.only()
        if size is not None:
            return container.bytes_of(size)
        return self._fleet.sizes.shares(container.memory_ratio).take(self.gpu("size"))

    def gpu(self, column: str) -> NDArray[Any]:
        """Return the named column of GPUs, [G, R]."""
        values: NDArray[Any] = getattr(self._fleet, column).T
        return values[:, : self._count] if self.whole else values.take(self._rows, axis=1)

    def _node(self, column: NDArray[Any]) -> NDArray[Any]:
        """Return the column of nodes for the rows in use, [R]."""
        return column[: self._count] if self.whole else column[self._rows]


def largest_group(gpus: Bools, group: NDArray[np.int8]) -> NDArray[np.int64]:
    """[R]: how many of the GPUs the largest group of each node has. gpus, group: [G, R]."""
    most = np.zeros(gpus.shape[1], np.int64)
    for one in range(int(group.max(initial=NO_GROUP)) + 1):
        np.maximum(most, np.add.reduce(gpus & (group == one), axis=0, dtype=np.int64), out=most)
    return most


def _fewer(gpus: Bools, wanted: int) -> Bools:
    """[R]: nodes that have fewer than `wanted` of these GPUs, a mask [G, R]."""
    few: Bools = np.add.reduce(gpus, axis=0, dtype=np.uint8) < wanted
    return few


def _of_both(wanted: int) -> Reason:
    return Reason.MEMORY_AND_CORE if wanted == 1 else Reason.GPUS
