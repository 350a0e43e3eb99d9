"""The daemon's side of board.h: the memory that the daemon shares with every client of a GPU.

It works on any writable buffer. Times are arguments, in nanoseconds of CLOCK_MONOTONIC. Clients
simulate the engine under a lock. The daemon never takes this lock. It stores only aligned numbers,
which clients cannot see half written. The daemon opens and ends the channels of contexts.
"""

from __future__ import annotations

import ctypes
from mmap import mmap
from typing import Any, Final

from simgpu.config import HostConfig
from simgpu.headers import Header

_HEADER: Final = Header("board.h")
CHANNELS, BUCKETS, BUCKET_NS, LOCK_WAITERS = (
    _HEADER.constants[f"SIM_{name}"]
    for name in ("CHANNELS", "BUCKETS", "BUCKET_NS", "LOCK_WAITERS")
)
STRUCTS: Final = _HEADER.shared()
SHARED_BYTES: Final = ctypes.sizeof(STRUCTS["sim_shared"])

_SECOND_NS: Final = 10**9


class Board:
    """The shared memory of one GPU."""

    def __init__(self, host: HostConfig, memory: mmap | bytearray) -> None:
        self._shared = STRUCTS["sim_shared"].from_buffer(memory)
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
        """Return the index of a channel for a new context, or None if all are in use."""
        for index in range(CHANNELS):
            channel = self._shared.channels[index]
            # A channel is free once the engine has dropped its ended context's items.
            if index not in self._used and channel.completed[:] == channel.submitted[:]:
                ctypes.memset(channel.busy, 0, ctypes.sizeof(channel.busy))
                channel.ended_ns = 0
                self._used.add(index)
                return index
        return None

    def end_channel(self, index: int, now_ns: int) -> None:
        """End the channel's context now, with all its pending work."""
        self._shared.channels[index].ended_ns = now_ns
        self._used.discard(index)

    def release(self, connection: int) -> None:
        """Release a connection's engine lock. Call this once no thread can use the connection."""
        board = self._shared.board
        if board.lock & ~LOCK_WAITERS == connection:
            board.lock = 0

    def busy_percent(self) -> int:
        """Return the GPU's busy percentage in the second before the engine's last advance."""
        return self._percent(self._shared.board.busy)

    def channel_busy_percent(self, index: int) -> int:
        return self._percent(self._shared.channels[index].busy)

    def _percent(self, rows: Any) -> int:
        until_ns = self._shared.board.now_ns
        from_ns = until_ns - _SECOND_NS
        last = until_ns // BUCKET_NS
        busy_ns = 0
        for bucket in range(max(0, from_ns // BUCKET_NS), last + 1):
            row = rows[bucket % BUCKETS]
            if row.bucket == bucket % 2**32:
                start_ns = bucket * BUCKET_NS
                # The oldest bucket counts in part, as if its work were spread evenly over it.
                inside_ns = BUCKET_NS - max(0, from_ns - start_ns)
                busy_ns += row.busy_ns * inside_ns // BUCKET_NS
        return min(100, (busy_ns * 100 + _SECOND_NS // 2) // _SECOND_NS)
