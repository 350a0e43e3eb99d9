"""One agent at a time: a file in the run directory that whoever serves has locked (flock).

Two live NRI plugins of one name contradict each other, and every container of the node fails. In a
rolling update, or where somebody starts a second agent by hand, the newcomer waits here until the
kernel has taken the lock from the old one, which it does with the process, however it ends. The
file says who that is. It lies in the run directory because that is the host's, whoever mounts it.
The directory is closed to other users before the lock is taken.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

FILE: Final = ".lock"
_ASK_EVERY_S: Final = 0.1
_SAID_CHARS_MAX: Final = 200
_MODE: Final = 0o700
_OTHERS: Final = 0o077


class Lock:
    """Of the agents that share a run directory. identity: of this process, for the others to tell.

    Local files only, a few bytes: quick enough for the event loop.
    """

    def __init__(self, run_dir: Path, identity: str) -> None:
        self._path = run_dir / FILE
        self._identity = identity
        self._descriptor: int | None = None

    async def acquire(self, say: Callable[[str], None]) -> None:
        """Return when it is ours. `say` is told in the meantime why it is not, again and again."""
        while (why := self._try()) is not None:
            say(why)
            await asyncio.sleep(_ASK_EVERY_S)

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _try(self) -> str | None:
        """None: it is ours; else why not."""
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
                raise FileNotFoundError  # removed by somebody between open and lock: not this one
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{self._identity}\n".encode(), 0)
        except BlockingIOError:
            holder = os.pread(descriptor, _SAID_CHARS_MAX, 0).decode(errors="replace").strip()
            os.close(descriptor)
            return f"another agent serves this node ({holder or 'it has just begun'})"
        except OSError as error:
            os.close(descriptor)
            return f"{self._path} cannot be locked: {error.strerror or 'it was removed'}"
        self._descriptor = descriptor
        return None


def _secure(run_dir: Path) -> str | None:
    """Make the directory, or close it to others: the regions in it are open to every user, and a
    kubelet that makes it (hostPath DirectoryOrCreate) lets them in. None: it is so."""
    run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            return (
                f"{run_dir}: invalid owner, user {found.st_uid}: must be user {os.geteuid()};"
                " remove the directory, or give --run-dir another place"
            )
        if found.st_mode & _OTHERS:
            os.fchmod(descriptor, _MODE)
    finally:
        os.close(descriptor)
    return None
