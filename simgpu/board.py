"""The daemon's side of board.h: the memory that the daemon shares with every client of a GPU.

It works on any writable buffer, and time is an argument in nanoseconds of CLOCK_MONOTONIC.
Clients simulate the engine, under a lock that the daemon never takes; each store here is one
aligned number. The daemon gives channels to contexts, ends them, and reads how busy the GPU was. A
test compares the structs with the header.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from mmap import mmap
from typing import Final

from simgpu.config import HostConfig

CHANNELS: Final = 256
PENDING: Final = 1024
HISTORY: Final = 4096
BUCKETS: Final = 64
BUCKET_NS: Final = 1 << 24
LOCK_WAITERS: Final = 1 << 31

_SECOND_NS: Final = 10**9


class SimBusy(ctypes.LittleEndianStructure):
    _fields_ = (("bucket", ctypes.c_uint32), ("busy_ns", ctypes.c_uint32))

    bucket: int
    busy_ns: int


class SimItem(ctypes.LittleEndianStructure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("duration_ns", "earliest_ns", "total_ns"))


class SimChannel(ctypes.LittleEndianStructure):
    _fields_ = (
        ("ended_ns", ctypes.c_uint64),
        ("submitted", ctypes.c_uint64),
        ("completed", ctypes.c_uint64),
        ("progress_ns", ctypes.c_uint64),
        ("busy", SimBusy * BUCKETS),
        ("items", SimItem * PENDING),
        ("finished_ns", ctypes.c_uint64 * HISTORY),
    )

    ended_ns: int
    submitted: int
    completed: int
    progress_ns: int
    busy: ctypes.Array[SimBusy]


class SimBoard(ctypes.LittleEndianStructure):
    _fields_ = (
        ("armed", ctypes.c_uint32),
        ("lost", ctypes.c_uint32),
        ("lock", ctypes.c_uint32),
        ("current", ctypes.c_uint32),
        ("recovery_action", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("launch_default_ns", ctypes.c_uint64),
        ("time_slice_ns", ctypes.c_uint64),
        ("copy_bytes_per_s", ctypes.c_uint64),
        ("context_host_bytes", ctypes.c_uint64),
        ("now_ns", ctypes.c_uint64),
        ("slice_end_ns", ctypes.c_uint64),
        ("pending", ctypes.c_uint64 * (CHANNELS // 64)),
        ("busy", SimBusy * BUCKETS),
    )

    armed: int
    lost: int
    lock: int
    recovery_action: int
    launch_default_ns: int
    time_slice_ns: int
    copy_bytes_per_s: int
    context_host_bytes: int
    now_ns: int
    busy: ctypes.Array[SimBusy]


class SimShared(ctypes.LittleEndianStructure):
    _fields_ = (("board", SimBoard), ("channels", SimChannel * CHANNELS))

    board: SimBoard
    channels: ctypes.Array[SimChannel]


SHARED_BYTES: Final = ctypes.sizeof(SimShared)


class Board:
    """One GPU's."""

    def __init__(self, host: HostConfig, memory: mmap | bytearray) -> None:
        self._shared = SimShared.from_buffer(memory)
        self._used: set[int] = set()
        board = self._shared.board
        board.launch_default_ns = host.launch_default_ns
        board.time_slice_ns = host.time_slice_us * 1000
        board.context_host_bytes = host.context_host_bytes
        board.copy_bytes_per_s = int(host.copy_gib_per_s * 2**30)

    def show(self, armed: int, lost: bool) -> None:
        self._shared.board.armed = armed
        self._shared.board.lost = lost

    def show_recovery(self, action: int) -> None:
        self._shared.board.recovery_action = action

    def open_channel(self) -> int | None:
        """A channel for a new context; None: all are in use."""
        for index in range(CHANNELS):
            channel = self._shared.channels[index]
            # An ended context's channel is free once the engine has dropped what it had.
            if index not in self._used and channel.completed == channel.submitted:
                ctypes.memset(channel.busy, 0, ctypes.sizeof(channel.busy))
                channel.ended_ns = 0
                self._used.add(index)
                return index
        return None

    def end_channel(self, index: int, now_ns: int) -> None:
        """Its context ends now, with all pending work."""
        self._shared.channels[index].ended_ns = now_ns
        self._used.discard(index)

    def release(self, connection: int) -> None:
        """Call it once no thread can use the connection any more."""
        board = self._shared.board
        if board.lock & ~LOCK_WAITERS == connection:
            board.lock = 0

    def busy_percent(self) -> int:
        """Use in the second before the last look at the engine."""
        return self._percent(self._shared.board.busy)

    def channel_busy_percent(self, index: int) -> int:
        return self._percent(self._shared.channels[index].busy)

    def _percent(self, rows: Sequence[SimBusy] | ctypes.Array[SimBusy]) -> int:
        until_ns = self._shared.board.now_ns
        from_ns = until_ns - _SECOND_NS
        last = until_ns // BUCKET_NS
        busy_ns = 0
        for bucket in range(max(0, from_ns // BUCKET_NS), last + 1):
            row = rows[bucket % BUCKETS]
            if row.bucket == bucket % 2**32:
                start_ns = bucket * BUCKET_NS
                # Where in its bucket the GPU was busy is not known.
                inside_ns = BUCKET_NS - max(0, from_ns - start_ns)
                busy_ns += row.busy_ns * inside_ns // BUCKET_NS
        return min(100, (busy_ns * 100 + _SECOND_NS // 2) // _SECOND_NS)
