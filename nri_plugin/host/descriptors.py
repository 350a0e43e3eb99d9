"""File descriptors, and a value that shows whether a file has changed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def opened(path: str | os.PathLike[str], flags: int) -> Iterator[int]:
    """Yield a descriptor from os.open. It is closed after the block, and on exec."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write(descriptor: int, data: bytes) -> None:
    """Write all data, by several calls where the kernel accepts only a part."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def version(path: str | os.PathLike[str]) -> object:
    """Return a value that changes when the file is replaced or modified; None: no such file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns
