"""Who this process is, and who it certainly replaces.

With a directory that outlives the process and that no two share (an emptyDir of the pod): a lock
on a file in it is the kernel's word that whoever held it before is dead; their names stand in the
file, the last ones. Then their Lease need not be waited out.
"""

from __future__ import annotations

import fcntl
import os
import socket
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from scheduler.election import Candidate

_FILE: Final = "identity"
_KEPT: Final = 8
"""Names: some may have died before they held the Lease."""
_BYTES: Final = 4096


class IncarnationError(RuntimeError):
    """The directory cannot be used; the text says why."""


class Incarnation:
    """After this you must keep it as long as the process lives; the lock goes with it."""

    def __init__(self, installation: str, directory: Path | None = None) -> None:
        name = f"{socket.gethostname()}_{uuid.uuid4().hex[:12]}"
        self._file: int | None = None
        dead = () if directory is None else self._replace(directory, name)
        self.candidate = Candidate(name, installation, frozenset(dead))

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _replace(self, directory: Path, name: str) -> Sequence[str]:
        """The names that stood there. Raises IncarnationError."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file = os.open(directory / _FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            before = os.pread(self._file, _BYTES, 0).decode("utf-8", "replace").split()
            # One write: who is killed in it leaves names that are no one's, at worst.
            written = "\n".join((name, *before[: _KEPT - 1])).encode()
            os.pwrite(self._file, written.ljust(_BYTES), 0)
        except BlockingIOError as error:
            self.close()
            raise IncarnationError(f"{directory}: another scheduler that runs uses it") from error
        except OSError as error:
            self.close()
            raise IncarnationError(f"{directory}: {error.strerror}") from error
        return before
