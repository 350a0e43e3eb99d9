"""The fleet: capacity and allocations of every GPU of every node, as columns.

A column is an array [node, GPU]. A node is a row, and its GPUs are ordered by minor. The row of a
removed node is reused. Row 0 stands for all unknown nodes and never fits. `used_*` is the exact sum
of what pods hold, even above capacity. Free capacity is total less `used_*` and `reserved_*`, or 0
if negative or if the GPU is unusable. Only `scheduler.decisions.state` changes the fleet.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpuslice.contract import names
from scheduler.core.label_sets import LabelSet, LabelSets
from scheduler.core.reasons import Reason
from scheduler.core.request import WHOLE_PERCENT, Attribute, Requirement
from scheduler.core.sizes import NO_GPU, Sizes

Rows = NDArray[np.intp]
"""The row numbers of R nodes."""
Bools = NDArray[np.bool_]

NO_ROW: Final = 0
MAX_BYTES: Final = 2**48
"""The memory of the largest accepted GPU. A thousand times as much still fits int64."""
MIN_BYTES: Final = WHOLE_PERCENT
"""The memory of the smallest accepted GPU: one percent of it is one byte."""
NO_GROUP: Final = -1
IN_USE: Final = 0.5
FULL: Final = 0.4
"""Weights in the binpack score of a GPU that is in use (IN_USE) and of its fullness (FULL)."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of the inventory.

    total_bytes: MIN_BYTES to MAX_BYTES. usable: healthy, not cordoned, not excluded. numa, root,
    link: its NUMA node, PCIe root and NVLink group, equal for GPUs that share it; None if unknown.
    model: NVML's name of the model; "" if unknown.
    """

    uuid: str
    minor: int
    total_bytes: int
    usable: bool = True
    numa: int | None = None
    root: str | None = None
    link: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    model: str = ""

    @property
    def label_set(self) -> LabelSet:
        return self.model, frozenset(self.labels.items())


@dataclass(frozen=True, slots=True)
class GpuAmount:
    """What a pod holds of one GPU. slot: the GPU's index in its node's row. core_percent: None if
    the share requests no core."""

    slot: int
    memory_bytes: int
    core_percent: int | None


_PER_GPU: Final[Mapping[str, tuple[Any, int]]] = {
    "total_bytes": (np.int64, 0),
    "used_bytes": (np.int64, 0),
    "used_core": (np.int32, 0),
    "uncapped_shares": (np.int32, 0),
    "reserved_bytes": (np.int64, 0),
    "reserved_core": (np.int32, 0),
    "reserved_uncapped": (np.int32, 0),
    "usable": (np.bool_, 0),
    "numa": (np.int8, NO_GROUP),
    "root": (np.int8, NO_GROUP),
    "link": (np.int8, NO_GROUP),
    "label_set": (np.int32, 0),
    "size": (np.intp, NO_GPU),
    "uuid": (np.uint64, 0),
    "free_bytes": (np.int64, 0),
    "free_core": (np.uint8, 0),
    "takes_uncapped": (np.bool_, 0),
    "is_open": (np.bool_, 0),
    "fullness": (np.float64, 0),
    "packing": (np.float64, 0),
}
"""Columns of GPUs: each one's type, and its value in a slot without a GPU."""
_PER_NODE: Final[Mapping[str, tuple[Any, int]]] = {
    "blocked_by": (np.uint8, Reason.NODE_UNKNOWN),
    "isolates": (np.bool_, 0),
    "partitioned": (np.bool_, 0),
    "tie": (np.uint64, 0),
    "freed_version": (np.int64, 0),
    "added": (np.int64, 0),
}
_HELD: Final = {
    "used": ("used_bytes", "used_core", "uncapped_shares"),
    "reserved": ("reserved_bytes", "reserved_core", "reserved_uncapped"),
}


class Fleet:
    """The columns of all nodes. N: number of rows. G: the most GPUs of a node, up to MAX_GPUS."""

    # Columns [N, G]. One slot of all nodes is contiguous in memory.
    total_bytes: NDArray[np.int64]
    used_bytes: NDArray[np.int64]
    used_core: NDArray[np.int32]  # percent held by shares that request core
    uncapped_shares: NDArray[np.int32]  # number of shares that request no core
    reserved_bytes: NDArray[np.int64]
    reserved_core: NDArray[np.int32]
    reserved_uncapped: NDArray[np.int32]
    usable: Bools
    numa: NDArray[np.int8]  # numbers of the node's groups, NO_GROUP where unknown
    root: NDArray[np.int8]
    link: NDArray[np.int8]
    label_set: NDArray[np.int32]  # index into `LabelSets`
    size: NDArray[np.intp]  # index into `sizes`
    uuid: NDArray[np.uint64]  # hash of the UUID
    # Columns [N, G] that `_derive` computes from the columns above.
    free_bytes: NDArray[np.int64]
    free_core: NDArray[np.uint8]  # the largest percent of core that a share may request
    takes_uncapped: Bools  # whether a share that requests no core fits
    is_open: Bools  # whether a pod holds or reserves a part of the GPU
    fullness: NDArray[np.float64]  # 0 to 1: the mean of the allocated fractions of memory and core
    packing: NDArray[np.float64]  # IN_USE if is_open, plus FULL times fullness
    # Columns [N].
    blocked_by: NDArray[np.uint8]  # the Reason why the node accepts no pods, 0 if it does
    isolates: Bools
    partitioned: Bools  # pods of several whole GPUs are not placed on the node
    tie: NDArray[np.uint64]  # hash of the name; breaks ties
    freed_version: NDArray[np.int64]  # `changes` when capacity may last have been freed
    added: NDArray[np.int64]  # `changes` when the node was added

    def __init__(self, nodes: int = 64, gpus: int = 8) -> None:
        """nodes, gpus: initial shape of the columns, which grow as needed."""
        self.names: list[str] = [""]
        self.gpus: list[Sequence[Gpu]] = [()]
        """The GPUs of each row, by slot."""
        self._labels = LabelSets()
        self.sizes = Sizes()
        self._row_of: dict[str, int] = {}
        self._unused: list[int] = []
        self.changes = 0
        """The number of changes so far that affect feasibility or ranking."""
        self._grow(nodes, gpus)

    # --- nodes

    def __len__(self) -> int:
        """Return the number of nodes, without removed ones."""
        return len(self._row_of)

    def row_of(self, name: str) -> int:
        """Return the node's row; NO_ROW for an unknown name."""
        return self._row_of.get(name, NO_ROW)

    def rows_of(self, node_names: Iterable[str]) -> Rows:
        """Return the rows of the named nodes, [R]; NO_ROW for an unknown name."""
        return np.fromiter(map(self._row_of.get, node_names, repeat(NO_ROW)), np.intp)

    def all_rows(self) -> Rows:
        """Return the rows of existing nodes, in the order of their names."""
        return np.array([self._row_of[name] for name in sorted(self._row_of)], np.intp)

    def add(self, name: str) -> int:
        """Return the node's row. A new node is added without GPUs, with the reason NO_DEVICE."""
        row = self._row_of.get(name)
        if row is None:
            row = heapq.heappop(self._unused) if self._unused else len(self.names)
            if row == len(self.names):
                self.names.append("")
                self.gpus.append(())
                if row >= len(self.blocked_by):
                    self._grow(2 * row, self.usable.shape[1])
            self._row_of[name] = row
            self.names[row] = name
            self.blocked_by[row] = Reason.NO_DEVICE
            self.tie[row] = _hash(name)
            self.added[row] = self._changed()
        return row

    def remove(self, name: str) -> None:
        """Remove the node. Its row is reused for a later one."""
        row = self._row_of.pop(name)
        self.set_gpus(row, ())
        self.names[row] = ""
        self.blocked_by[row] = Reason.NODE_UNKNOWN
        heapq.heappush(self._unused, row)

    def set_node(self, row: int, blocked_by: Reason, isolates: bool, partitioned: bool) -> None:
        self._changed()
        self.blocked_by[row] = blocked_by
        self.isolates[row], self.partitioned[row] = isolates, partitioned

    def note_freed(self, row: int) -> None:
        """Record that a pod that was refused on this node may fit now."""
        if row != NO_ROW:
            self.freed_version[row] = self._changed()

    # --- GPUs

    def set_gpus(self, row: int, gpus: Sequence[Gpu]) -> None:
        """Replace the node's GPUs. gpus: at most MAX_GPUS, with distinct UUIDs. What pods hold of
        the node is cleared, so the caller must call `take` again."""
        assert len(gpus) <= names.MAX_GPUS
        self._changed()
        if len(gpus) > self.usable.shape[1]:
            self._grow(len(self.blocked_by), len(gpus))
        ordered = tuple(sorted(gpus, key=lambda gpu: (gpu.minor, gpu.uuid)))
        for gpu in self.gpus[row]:
            self._labels.release(gpu.label_set)
            self.sizes.release(gpu.total_bytes)
        self.gpus[row] = ordered
        for name, (_, nothing) in _PER_GPU.items():
            getattr(self, name)[row] = nothing
        count = slice(0, len(ordered))
        self.total_bytes[row, count] = [gpu.total_bytes for gpu in ordered]
        self.usable[row, count] = [gpu.usable for gpu in ordered]
        self.numa[row, count] = _groups([gpu.numa for gpu in ordered])
        self.root[row, count] = _groups([gpu.root for gpu in ordered])
        self.link[row, count] = _groups([gpu.link for gpu in ordered])
        self.label_set[row, count] = [self._labels.intern(gpu.label_set) for gpu in ordered]
        self.uuid[row, count] = [_hash(gpu.uuid) for gpu in ordered]
        self.size[row, count] = [self.sizes.intern(gpu.total_bytes) for gpu in ordered]
        self._derive((row, count))

    def slot_of(self, row: int, uuid: str | None, minor: int) -> int | None:
        """Return the slot of the GPU with this UUID, or with this minor if uuid is None. Return
        None if the node has no such GPU."""
        for slot, gpu in enumerate(self.gpus[row]):
            if gpu.uuid == uuid or (uuid is None and gpu.minor == minor):
                return slot
        return None

    def take(self, row: int, amount: GpuAmount, sign: int = 1) -> None:
        """Add the amount to what pods hold of the GPU. sign: -1 to subtract it."""
        self._change("used", row, amount, sign)

    def reserve(self, row: int, amount: GpuAmount, sign: int) -> None:
        """Add the amount to what is reserved of the GPU. sign: 1, or -1 to subtract it."""
        self._change("reserved", row, amount, sign)

    def fits(self, row: int, amount: GpuAmount) -> bool:
        """Return whether the amount fits on the GPU in addition to what is used and reserved."""
        index = (row, amount.slot)
        if amount.memory_bytes > self.free_bytes[index]:
            return False
        if amount.core_percent is None:
            return bool(self.takes_uncapped[index])
        return amount.core_percent <= int(self.free_core[index])

    @contextmanager
    def vacated(self, row: int, amounts: Sequence[GpuAmount]) -> Iterator[None]:
        """Subtract the amounts from what pods hold of the node's GPUs, until the exit. The enclosed
        code must not await."""
        for each in amounts:
            self.take(row, each, -1)
        try:
            yield
        finally:
            for each in amounts:
                self.take(row, each)

    def selected(
        self, selector: Sequence[Requirement], column: Callable[[str], NDArray[Any]]
    ) -> Bools:
        """Return which GPUs match the whole selector. column: a function that returns the named
        column, or a part of it. The result has the shape of these columns."""
        of_sets = tuple(line for line in selector if line.attribute is not Attribute.UUID)
        matched: Bools = self._labels.selected(of_sets)[column("label_set")]
        for line in selector:
            if line.attribute is Attribute.UUID:
                listed = np.array([_hash(each) for each in sorted(line.values or ())], np.uint64)
                matched &= np.isin(column("uuid"), listed, invert=line.negated)
        return matched

    def _changed(self) -> int:
        self.changes += 1
        return self.changes

    def _change(self, kind: str, row: int, amount: GpuAmount, sign: int) -> None:
        self._changed()
        index = (row, amount.slot)
        held_bytes, held_core, uncapped_shares = (getattr(self, name) for name in _HELD[kind])
        held_bytes[index] += sign * amount.memory_bytes
        if amount.core_percent is None:
            uncapped_shares[index] += sign
        else:
            held_core[index] += sign * amount.core_percent
        self._derive(index)

    def _derive(self, index: Any) -> None:
        """Compute the derived columns of some GPUs. index: any numpy index into the columns."""
        total, usable = self.total_bytes[index], self.usable[index]
        used_bytes = self.used_bytes[index] + self.reserved_bytes[index]
        used_core = self.used_core[index] + self.reserved_core[index]
        is_uncapped = self.uncapped_shares[index] + self.reserved_uncapped[index] != 0
        is_open = (used_bytes != 0) | (used_core != 0) | is_uncapped
        memory = np.minimum(used_bytes, total) / np.maximum(total, 1)
        full = (memory + np.minimum(used_core, WHOLE_PERCENT) / WHOLE_PERCENT) / 2
        self.is_open[index], self.fullness[index] = is_open, full
        self.packing[index] = IN_USE * is_open + FULL * full
        self.free_bytes[index] = np.maximum(total - used_bytes, 0) * usable
        # A GPU cannot have a share that requests no core beside a share of 100 percent core.
        self.free_core[index] = np.maximum(WHOLE_PERCENT - is_uncapped - used_core, 0) * usable
        self.takes_uncapped[index] = usable & (used_core < WHOLE_PERCENT)

    def _grow(self, nodes: int, gpus: int) -> None:
        for columns, shape in ((_PER_NODE, (nodes,)), (_PER_GPU, (nodes, gpus))):
            for name, (dtype, nothing) in columns.items():
                # Order F: one slot of all nodes is contiguous, for fast passes over the nodes.
                new = np.full(shape, nothing, dtype, order="F")
                if (old := getattr(self, name, None)) is not None:
                    new[tuple(map(slice, old.shape))] = old
                setattr(self, name, new)


def _hash(name: str) -> int:
    """Return a hash of 64 bits, which is the same in every process."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _groups(values: Sequence[int | str | None]) -> Sequence[int]:
    """Number the distinct values from 0, in order of first occurrence; NO_GROUP for None."""
    known: dict[int | str, int] = {}
    return [NO_GROUP if each is None else known.setdefault(each, len(known)) for each in values]
