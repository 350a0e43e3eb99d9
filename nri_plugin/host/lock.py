"""Ensures one agent at a time: the serving agent holds a flock on a file in the run directory.

Two NRI plugins of one name contradict each other, and every container of the node fails. In a
rolling update, or if an operator starts a second agent, the new agent waits for the lock. The
kernel releases the lock when the old agent's process ends for any reason. The file identifies the
holder. All agents see the same file, because the run directory is the host's. Before the agent
locks the file, it denies other users access to the run directory.
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


class Lock:
    """The lock of the agents of a run directory. identity: text by which other agents identify this
    process. The methods access only small local files, so they may run on the event loop."""

    def __init__(self, run_dir: Path, identity: str) -> None:
        self._path = run_dir / FILE
        self._identity = identity
        self._descriptor: int | None = None

    async def acquire(self, report: Callable[[str], None]) -> None:
        """Wait for the lock. Meanwhile call `report` repeatedly with the reason of the wait."""
        while (why := self.try_acquire()) is not None:
            report(why)
            await asyncio.sleep(_POLL_S)

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def try_acquire(self) -> str | None:
        """Return None if this agent now holds the lock, else why it does not."""
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
                raise FileNotFoundError  # the file was replaced between open and lock
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
    """Close the directory to other users, because its regions are writable by all. The kubelet, if
    it creates the directory (hostPath DirectoryOrCreate), leaves it open. Return the problem that
    remains, or None."""
    run_dir.mkdir(mode=_MODE, parents=True, exist_ok=True)
    with opened(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW) as descriptor:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            return (
                f"{run_dir}: invalid owner, user {status.st_uid}: must be user {os.geteuid()};"
                " remove the directory, or set --run-dir to another directory"
            )
        os.fchmod(descriptor, _MODE)
    return None
