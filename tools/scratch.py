"""Makes temporary directories, each beside the final place of what is made in it.

A process locks its directory, and removes it in the end. If the process is killed, the next process
removes the directory, because its lock is free. Only the standard library is used, for setup.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch(parent: Path, prefix: str) -> Iterator[Path]:
    """Yield a new directory in `parent`, and remove it afterwards. Move results out of it."""
    parent.mkdir(parents=True, exist_ok=True)
    all_locked = _lock(parent)  # protects `ours` until it is locked
    try:
        for path in parent.glob(f"{prefix}*"):
            try:
                orphan = _lock(path, fcntl.LOCK_NB)
            except OSError:  # another process uses or has removed it
                continue
            shutil.rmtree(path, ignore_errors=True)
            os.close(orphan)
        ours = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        lock = _lock(ours)
    finally:
        os.close(all_locked)
    try:
        yield ours
    finally:
        shutil.rmtree(ours, ignore_errors=True)
        os.close(lock)


def _lock(directory: Path, flags: int = 0) -> int:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
