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
    with _locked(parent):  # until ours is locked too, no process may take it for an orphan
        for path in parent.glob(f"{prefix}*"):
            if _is_free(path):
                shutil.rmtree(path, ignore_errors=True)
        ours = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        lock = _open(ours)
        fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield ours
    finally:
        shutil.rmtree(ours, ignore_errors=True)
        os.close(lock)


def _open(directory: Path) -> int:
    return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    descriptor = _open(directory)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _is_free(directory: Path) -> bool:
    try:
        descriptor = _open(directory)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
