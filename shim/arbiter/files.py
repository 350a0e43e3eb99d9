"""The files of the containers that the arbiter serves: grants, regions and leases.

Regions are read by pread, because a tenant can truncate its region. Grants and leases are mapped,
because no tenant of a node can truncate them. So the only system call for a new lease is the one
that wakes the threads that wait for it. The directories of `shim run` are in a directory that any
user may write. So only regular files of this user are served, and opening a file never blocks.
"""

from __future__ import annotations

import errno
import mmap
import os
import platform
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from gpuslice.contract import grant_file, lease_file, names, region_file
from gpuslice.contract.lease_file import Lease
from gpuslice.ffi.libc import LIBC, ffi
from shim import region
from shim.arbiter.clock import Clock
from shim.arbiter.member import Share

_SYS_FUTEX: Final = {"x86_64": 202, "aarch64": 98}[platform.machine()]
_FUTEX_WAKE: Final = ffi.cast("int", 1)
_ALL: Final = ffi.cast("int", 2**31 - 1)
_NONE: Final = ffi.NULL, ffi.NULL, ffi.cast("int", 0)
"""The arguments of the system call futex that FUTEX_WAKE does not read."""
_RECORD_BYTES: Final = region_file.COMPUTE.size


class Container:
    """One container's directory. The constructor raises OSError if a file is missing, and
    ValueError if the grant or the lease file is not valid."""

    def __init__(self, directory: Path) -> None:
        with ExitStack() as opened:
            grant = _open(directory / names.FILE_GRANT, os.O_RDONLY)
            opened.callback(os.close, grant)
            status = os.fstat(grant)
            self._inode = status.st_dev, status.st_ino
            self._grant = mmap.mmap(grant, grant_file.FILE_BYTES, access=mmap.ACCESS_READ)
            self._seen = b""
            self.gpus: Sequence[grant_file.Gpu] = ()
            if not self.refresh():
                raise ValueError(f"{directory / names.FILE_GRANT}: no valid copy of a grant")
            lease = _open(directory / names.FILE_LEASE, os.O_RDWR)
            opened.callback(os.close, lease)
            data = os.pread(lease, lease_file.FILE_BYTES, 0)
            self._version = lease_file.version(data)
            if not self._version:
                raise ValueError(f"{directory / names.FILE_LEASE}: not a lease file")
            self._lease = mmap.mmap(lease, lease_file.FILE_BYTES)
            self._region = _open(directory / names.FILE_REGION, os.O_RDONLY)
        self._words = ffi.from_buffer(self._lease)
        count = len(self.gpus)
        self._sequences = [lease_file.sequence(data, gpu, self._version) for gpu in range(count)]
        self._launches_checked: bool | None = None
        self.key = f"{directory.name}/{status.st_ino}"
        self.lanes = self._version == lease_file.VERSION
        """Whether the container's library, which may be older than the arbiter, knows lanes."""
        geometry = region_file.Geometry(count)
        self._activity_offsets = [geometry.compute_offset(gpu) for gpu in range(count)]
        self._activities = [(b"", region_file.Compute())] * count
        self._clocks = [Clock() for _ in range(count)]

    def close(self) -> None:
        """Close the files. The container then uses its own part of each cycle."""
        self._grant.close()
        ffi.release(self._words)
        self._lease.close()
        os.close(self._region)

    def is_in(self, directory: Path) -> bool:
        """Return whether the directory still holds the same grant. If the directory was removed and
        made again, its grant file has another inode number: the number of a mapped file is not
        reused."""
        try:
            there = os.stat(directory / names.FILE_GRANT, follow_symlinks=False)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == self._inode

    def refresh(self) -> bool:
        """Read the grant again if it has changed. Return whether it has."""
        second = grant_file.COPY_STRIDE
        sequences = self._grant[:8] + self._grant[second : second + 8]
        if sequences == self._seen:
            return False
        grant = grant_file.decode(self._grant[:])
        if grant is None:
            return False
        self._seen, self.gpus = sequences, grant.gpus
        return True

    def shares(self) -> Mapping[str, tuple[int, Share]]:
        """Return, for each GPU's UUID, the GPU's index in the grant and the container's share."""
        return {
            gpu.uuid: (index, Share(gpu.core_percent, gpu.policy, self.lanes))
            for index, gpu in enumerate(self.gpus)
        }

    def activity(self, gpu: int, now_ns: int) -> region_file.Compute:
        """Return the work of the container's processes on that GPU; none if the region is
        truncated."""
        record = os.pread(self._region, _RECORD_BYTES, self._activity_offsets[gpu])
        if record != self._activities[gpu][0]:
            seen = self._clocks[gpu].to_host(now_ns, region_file.compute(record))
            self._activities[gpu] = record, seen
        self._clocks[gpu].looked_ns = now_ns
        return self._activities[gpu][1]

    def has_processes(self) -> bool:
        """Return whether any process has a slot of the region."""
        return region.is_locked(self._region, 0, names.MAX_SLOTS)

    def write(self, gpu: int, lease: Lease) -> None:
        """Write the lease and wake the threads that wait for its change."""
        sequence = self._sequences[gpu] = self._sequences[gpu] + 1
        lease = self._clocks[gpu].to_container(lease)
        for write in lease_file.update(gpu, sequence, lease, self._version):
            self._lease[write.offset : write.offset + len(write.data)] = write.data
        LIBC.syscall(_SYS_FUTEX, self._words + write.offset, _FUTEX_WAKE, _ALL, *_NONE)

    def check_launches(self, launches_checked: bool) -> None:
        """Turn the check of this container's launches on or off."""
        if launches_checked is not self._launches_checked:
            write = lease_file.check_launches(launches_checked)
            self._lease[write.offset : write.offset + len(write.data)] = write.data
            self._launches_checked = launches_checked


def _open(path: Path, flags: int) -> int:
    """Open a regular file of this user. Raises OSError for any other file."""
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
        return descriptor
    os.close(descriptor)
    raise PermissionError(errno.EPERM, "not a regular file of this user", str(path))


def directories(parent: Path, prefix: str) -> Iterator[Path]:
    """Yield this user's directories below `parent` whose names begin with `prefix`. Hidden
    directories belong to no container: the agent keeps the library and its CDI specs in them."""
    for entry in sorted(os.scandir(parent), key=lambda each: each.name):
        hidden = entry.name.startswith(".")
        if entry.name.startswith(prefix) and not hidden and _is_own_directory(entry):
            yield parent / entry.name


def _is_own_directory(entry: os.DirEntry[str]) -> bool:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:  # removed since scandir listed it
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
