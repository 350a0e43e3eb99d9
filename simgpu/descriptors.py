"""Exported descriptors: memory exists while any process has a copy of one open.

Uses files and locks, and no sockets. Each exported descriptor is a separate open file description
that locks the memory's file. The lock ends when the last copy is closed, including sent and
inherited copies. Until then the daemon itself holds the memory, as one more client of the
GPU. Call `drop_closed` before the GPU is read or changed.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from typing import Final

from simgpu.gpus import Gpu, GpuError
from simgpu.wire import Status

# struct flock for a whole file: type, whence, start, length, pid.
_FLOCK: Final = struct.Struct("@hhqqi4x")
_ANY_LOCK: Final = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


class Descriptors:
    """The exported descriptors of one GPU."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._client: int | None = None
        self._held: dict[int, tuple[int, int]] = {}
        """For each memory's token, the daemon's descriptor of the file and its id of the memory."""

    def keep(self, client: int, pid: int, allocation: int, number: int) -> None:
        """Keep the memory while its file is locked. number: the client's descriptor of the file."""
        token = self._gpu.memory_export(client, allocation)
        if token in self._held:
            return
        fd = _open(pid, number)
        if self._client is None:
            self._client = self._gpu.join(0)
        ours, _ = self._gpu.memory_import(self._client, 0, token)
        self._held[token] = fd, ours

    def drop_closed(self) -> None:
        if self._client is None or self._gpu.lost:
            return
        for token, (fd, ours) in tuple(self._held.items()):
            if not _is_locked(fd):
                self._gpu.memory_free(self._client, ours)
                os.close(fd)
                del self._held[token]
        if not self._held:
            self._gpu.leave(self._client, 0)
            self._client = None

    def close(self) -> None:
        for fd, _ in self._held.values():
            os.close(fd)
        self._held.clear()


def _open(pid: int, number: int) -> int:
    """Open the client's descriptor. Raises GpuError, for example if /proc lacks the client."""
    try:
        fd = os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        raise GpuError(Status.NOT_SUPPORTED) from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise GpuError(Status.INVALID_VALUE)
    return fd


def _is_locked(fd: int) -> bool:
    seen = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _ANY_LOCK)
    return bool(_FLOCK.unpack(seen)[0] != fcntl.F_UNLCK)
