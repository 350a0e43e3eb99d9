"""Descriptors of files, and values that change with a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def opened(path: str | os.PathLike[str], flags: int, mode: int = 0o600) -> Iterator[int]:
    """Yield a descriptor as of os.open, closed on exec and after the block."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, mode)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write(descriptor: int, data: bytes) -> None:
    """Write all of it: the kernel may take a part at a time."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def version(path: str | os.PathLike[str]) -> object:
    """Return a value that changes when the file is replaced or modified; None: there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns
