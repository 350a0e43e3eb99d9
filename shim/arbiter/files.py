"""The files of the containers that the arbiter serves: grants, regions and leases.

Reads grants and regions by pread, because a tenant can truncate its region. Leases are written by
pwrite, and their waiters woken by futex on a mapping of the lease file, which no tenant can
truncate. Any user may write the parent of `shim run`'s directories: what is not this user's, or not
a regular file, is not served, and its open waits for nothing.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from contract import grant_file, lease_file, names, region_file
from contract.lease_file import Lease
from shim.arbiter.turns import Activity, Share

_SYS_FUTEX: Final = {"x86_64": 202, "aarch64": 98}[platform.machine()]
_FUTEX_WAKE: Final = 1
_ALL: Final = 2**31 - 1
_libc: Final = ctypes.CDLL(None, use_errno=True)


class Container:
    """One directory with a grant. Raises OSError if a file is missing, ValueError if the grant or
    the lease file is not valid."""

    def __init__(self, directory: Path) -> None:
        self._grant = _open(directory / names.FILE_GRANT, os.O_RDONLY)
        self._others: list[int] = []
        try:
            self._open(directory)
        except (OSError, ValueError):
            self.close()
            raise

    def _open(self, directory: Path) -> None:
        self._seen = b""
        self.gpus: Sequence[grant_file.Gpu] = ()
        if not self.refresh():
            raise ValueError(f"{directory / names.FILE_GRANT}: no valid copy of a grant")
        self._region = _open(directory / names.FILE_REGION, os.O_RDONLY)
        self._others.append(self._region)
        self._lease = _open(directory / names.FILE_LEASE, os.O_RDWR)
        self._others.append(self._lease)
        data = os.pread(self._lease, lease_file.FILE_BYTES, 0)
        if not lease_file.is_readable(data):
            version = lease_file.VERSION
            raise ValueError(
                f"{directory / names.FILE_LEASE}: not a lease file of version {version}"
            )
        self._mapping = mmap.mmap(self._lease, lease_file.FILE_BYTES)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        count = len(self.gpus)
        found = [lease_file.decode(data, gpu) for gpu in range(count)]
        self._sequences = [each[0] if each else 0 for each in found]
        self._gated: bool | None = None
        self.key = f"{directory.name}/{os.fstat(self._grant).st_ino}"
        geometry = region_file.Geometry(count)
        self._activity_offsets = [geometry.compute_offset(gpu) for gpu in range(count)]

    def close(self) -> None:
        """Close its files; its tenants keep their own part of each cycle."""
        for descriptor in (self._grant, *self._others):
            os.close(descriptor)
        self._others, self._grant = [], -1

    def is_in(self, directory: Path) -> bool:
        """Whether the directory still has the same grant: one removed and made again under the same
        name has another file, because this one's number stays in use while it is open."""
        try:
            there = os.stat(directory / names.FILE_GRANT, follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(self._grant))

    def refresh(self) -> bool:
        """Read the grant again if it has changed; False: it has not."""
        heads = b"".join(os.pread(self._grant, 8, copy * grant_file.COPY_STRIDE) for copy in (0, 1))
        if heads == self._seen:
            return False
        grant = grant_file.decode(os.pread(self._grant, grant_file.FILE_BYTES, 0))
        if grant is None:
            return False
        self._seen, self.gpus = heads, grant.gpus
        return True

    def shares(self) -> Mapping[str, tuple[int, Share]]:
        """By the GPU's UUID: its index in the grant, and the share of it."""
        return {
            gpu.uuid: (index, Share(gpu.core_percent, gpu.core_forced))
            for index, gpu in enumerate(self.gpus)
        }

    def activity(self, gpu: int) -> Activity:
        """What its processes do on that GPU; nothing if the region is truncated."""
        offset = self._activity_offsets[gpu]
        work = region_file.compute(os.pread(self._region, region_file.COMPUTE.size, offset))
        return Activity(work.launched_ns, work.busy_until_ns, work.busy_ns, work.waiting_since_ns)

    def write(self, gpu: int, lease: Lease) -> None:
        """Write the lease and wake the threads that wait for one."""
        sequence = self._sequences[gpu] = self._sequences[gpu] + 1
        for write in lease_file.update(gpu, sequence, lease):
            os.pwrite(self._lease, write.data, write.offset)
        _libc.syscall(
            _SYS_FUTEX,
            ctypes.c_void_p(self._address + lease_file.record_offset(gpu, sequence)),
            _FUTEX_WAKE,
            _ALL,
            None,
            None,
            0,
        )

    def gate(self, gated: bool) -> None:
        """Turn the check of its launches on or off."""
        if gated is not self._gated:
            write = lease_file.gate(gated)
            os.pwrite(self._lease, write.data, write.offset)
            self._gated = gated


def _open(path: Path, flags: int) -> int:
    """Open a regular file of this user. Raises OSError, also for any other file."""
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
        return descriptor
    os.close(descriptor)
    raise PermissionError(errno.EPERM, "not a regular file of this user", str(path))


def directories(parent: Path, prefix: str) -> Iterator[Path]:
    """This user's directories below `parent`, by the beginning of their names."""
    for entry in sorted(os.scandir(parent), key=lambda each: each.name):
        if entry.name.startswith(prefix) and _is_own_directory(entry):
            yield parent / entry.name


def _is_own_directory(entry: os.DirEntry[str]) -> bool:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:  # it was removed meanwhile
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
