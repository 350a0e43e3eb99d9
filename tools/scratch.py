"""A temporary directory beside the final place of its content; removed afterwards.

A killed process cannot remove its own, so the next process does: a scratch directory whose lock is
free has no owner any more. Standard library only: setup runs it.
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
    """A fresh directory in `parent`; move out of it what is to stay."""
    parent.mkdir(parents=True, exist_ok=True)
    all_locked = _lock(parent)  # until ours is locked too, no process may take it for an orphan
    try:
        for path in parent.glob(f"{prefix}*"):
            try:
                orphan = _lock(path, fcntl.LOCK_NB)
            except OSError:  # it has an owner, or is gone
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
