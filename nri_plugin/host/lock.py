"""Ensures one agent at a time: the serving agent holds a flock on a file in the run directory.

Two NRI plugins of one name contradict each other, and every container of the node fails. In a
rolling update, or if an operator starts a second agent, the new agent waits here until the kernel
releases the old one's lock, which happens when that process ends, for any reason. The file
identifies the holder. It is in the run directory because that belongs to the host, whatever pod
mounts it. The directory is closed to other users before the lock is taken.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from nri_plugin.host.descriptors import opened

FILE: Final = ".lock"
_POLL_S: Final = 0.1
_HOLDER_CHARS_MAX: Final = 200
_MODE: Final = 0o700
_OTHERS: Final = 0o077


class Lock:
    """The lock of agents that share a run directory. identity: of this process, for the others.
    Accesses only small local files: fast enough for the event loop."""

    def __init__(self, run_dir: Path, identity: str) -> None:
        self._path = run_dir / FILE
        self._identity = identity
        self._descriptor: int | None = None

    async def acquire(self, report: Callable[[str], None]) -> None:
        """Return when the lock is held. Until then call `report` repeatedly with the reason."""
        while (why := self.try_acquire()) is not None:
            report(why)
            await asyncio.sleep(_POLL_S)

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def try_acquire(self) -> str | None:
        """Return None if the lock is held from now on; else why not."""
        try:
            problem = _secure(self._path.parent)
            if problem is not None:
                return problem
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(self._path, flags, 0o600)
        except OSError as error:
            return f"{self._path} cannot be locked: {error.strerror}"
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(descriptor), os.stat(self._path)):
                raise FileNotFoundError  # replaced between open and lock: the lock is not valid
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{self._identity}\n".encode(), 0)
        except BlockingIOError:
            holder = os.pread(descriptor, _HOLDER_CHARS_MAX, 0).decode(errors="replace").strip()
            os.close(descriptor)
            return f"another agent serves this node ({holder or 'it has just begun'})"
        except OSError as error:
            os.close(descriptor)
            return f"{self._path} cannot be locked: {error.strerror or 'it was removed'}"
        self._descriptor = descriptor
        return None


def _secure(run_dir: Path) -> str | None:
    """Create the directory, or close it to others: the regions in it are open to every user, and a
    kubelet that creates it (hostPath DirectoryOrCreate) lets them in. Returns None on success."""
    run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with opened(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW) as descriptor:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            return (
                f"{run_dir}: invalid owner, user {status.st_uid}: must be user {os.geteuid()};"
                " remove the directory, or set --run-dir to another directory"
            )
        if status.st_mode & _OTHERS:
            os.fchmod(descriptor, _MODE)
    return None
