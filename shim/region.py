"""The files of a grant, made and read outside any container.

`grant` and `region` are made here for a program that one user runs. The node agent makes those of
containers. Files are read with pread, never mapped, because the limited program can truncate its
region. `gpuslice/contract` has their layout.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuslice.contract import grant_file, lease_file, names, region_file

_TMPFS: Final = Path("/dev/shm")
_FLOCK: Final = "hhqqi4x"
"""The format of struct flock: type, whence, start, length, pid."""


class RegionDirectoryError(Exception):
    """A valid file of a grant is missing from a directory. The text names the file."""


@dataclass(frozen=True, slots=True)
class GpuStatus:
    """One GPU of a grant: its limits, the memory in use and the work done."""

    gpu: grant_file.Gpu
    use: region_file.GpuUse
    work: region_file.Compute

    @property
    def used_bytes(self) -> int:
        """The bytes that count against the limit: those charged, and the measured overhead."""
        return self.use.used_bytes + self.gpu.overhead_bytes


@dataclass(frozen=True, slots=True)
class Holder:
    """A holder of memory: a process, or (pid 0) memory that several processes hold together."""

    slot: int
    pid: int
    pid_namespace: int
    bytes: Sequence[int]
    """The bytes that the holder has on each GPU of the grant, without a float."""
    ended: bool
    """Whether the slot's lock is free. The container's next search then drops the slot's charge."""


def parent(environment: Mapping[str, str]) -> Path | None:
    """Return where to make private grant directories: a tmpfs if one is usable.

    On overlayfs, which many containers have at /tmp, a mapping does not keep a file lock. There
    processes in nested PID namespaces would regard each other as exited (docs/adr/0002). None means
    Python's default for temporary files, which TMPDIR sets.
    """
    usable = os.access(_TMPFS, os.W_OK | os.X_OK)
    return _TMPFS if usable and "TMPDIR" not in environment else None


def create(directory: Path, gpus: Sequence[grant_file.Gpu], created_ns: int | None = None) -> None:
    """Write a fresh grant for `gpus`, its region and its leases into an existing directory.

    created_ns: CLOCK_MONOTONIC, by default now. Shortly after this time, an allocation that the
    driver refuses is repeated, because processes that exited before it may still hold the memory.
    """
    if created_ns is None:
        created_ns = time.monotonic_ns()
    grant_id = secrets.randbits(63) | 1
    contents = {
        names.FILE_REGION: region_file.fresh(len(gpus), grant_id, created_ns),
        names.FILE_GRANT: grant_file.fresh(grant_file.Grant(grant_id, gpus)),
        names.FILE_LEASE: lease_file.fresh(
            len(gpus), launches_checked=any(gpu.core_limited for gpu in gpus)
        ),
    }
    for name, content in contents.items():
        descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)


def holders(directory: Path) -> Sequence[Holder]:
    """Return every slot in use, lowest first. Raises RegionDirectoryError as `status` does."""
    path = directory / names.FILE_REGION
    data = _read(path, region_file.Geometry(len(status(directory))).compute_offset(0))
    with path.open("rb") as file:
        try:
            return tuple(_holder(slot, file.fileno()) for slot in region_file.slots(data))
        except region_file.RegionError as error:
            raise RegionDirectoryError(f"{path}: {error}") from error


def is_locked(descriptor: int, slot: int, count: int = 1) -> bool:
    """Return whether a process holds the lock of any of these slots. No lock is taken.
    docs/adr/0002 lists the file systems on which the result is wrong."""
    start = region_file.LOCK_LIVE + slot
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, start, count, 0)
    answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked)
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)


def _holder(slot: region_file.Slot, descriptor: int) -> Holder:
    held = [max(0, a - b) for a, b in zip(slot.bytes, slot.float_bytes, strict=True)]
    ended = not is_locked(descriptor, slot.number)
    return Holder(slot.number, slot.pid, slot.pid_namespace, held, ended)


def status(directory: Path) -> Sequence[GpuStatus]:
    """Return the limits of the directory's grant and their use. Raises RegionDirectoryError."""
    grant = grant_file.decode(_read(directory / names.FILE_GRANT, grant_file.FILE_BYTES))
    if grant is None:
        raise RegionDirectoryError(f"{directory / names.FILE_GRANT}: no valid copy of a grant")
    path = directory / names.FILE_REGION
    geometry = region_file.Geometry(len(grant.gpus))
    uses = _uses(path, geometry)
    records = _read(path, len(uses) * region_file.COMPUTE.size, geometry.compute_offset(0))
    each = region_file.COMPUTE.size
    return [
        GpuStatus(gpu, use, region_file.compute(records[index * each : (index + 1) * each]))
        for index, (gpu, use) in enumerate(zip(grant.gpus, uses, strict=True))
    ]


def _uses(path: Path, geometry: region_file.Geometry) -> Sequence[region_file.GpuUse]:
    try:
        uses = region_file.uses(_read(path, geometry.slots_offset))
    except region_file.RegionError as error:
        raise RegionDirectoryError(f"{path}: {error}") from error
    if len(uses) != geometry.gpu_count:
        raise RegionDirectoryError(f"{path}: {len(uses)} GPUs, the grant has {geometry.gpu_count}")
    return uses


def _read(path: Path, size: int, offset: int = 0) -> bytes:
    try:
        descriptor = os.open(path, os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise RegionDirectoryError(f"{path}: {error.strerror}") from error
    try:
        return os.pread(descriptor, size, offset)
    finally:
        os.close(descriptor)
