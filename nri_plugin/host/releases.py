"""Writes files that other programs may read at the same time: the library's releases and its copy.

A file is complete or absent at each moment, whatever fails: it is written under a temporary name,
synced, renamed and read back. A file is never changed in place, because programs map it. All
writers of a store hold its lock. Therefore a temporary file has one writer, and the next writer
overwrites a file that a killed writer left. Blocks: run it in a worker thread.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from nri_plugin.host.descriptors import opened, write
from nri_plugin.policy.refusals import StoreError

is_release: Final = re.compile("[0-9a-f]{64}").fullmatch
"""Matches the name of a release's directory in the store."""
LOCK: Final = ".lock"
_LOCK_WAIT_S: Final = 0.5
_LOCK_POLL_S: Final = 0.01
_MODE: Final = 0o755
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def place(data: bytes, name: str, store: Path) -> Path:
    """Return the path in the store of a file with this content."""
    return store / hashlib.sha256(data).hexdigest() / name


def publish(data: bytes, name: str, store: Path) -> Path:
    """Write a file into the store unless it exists. Return its path. Raises StoreError."""
    target = place(data, name, store)
    if not holds(target, data):
        with locked(store):
            if not holds(target, data):  # no other process has published it meanwhile
                replace(target, data)
    return target


def holds(path: Path, data: bytes) -> bool:
    """Return whether the path is a regular file with this content that every user can load."""
    try:
        with open(os.open(path, _READ), "rb", buffering=0) as file:
            is_loadable = os.fstat(file.fileno()).st_mode == stat.S_IFREG | _MODE
            return is_loadable and file.read() == data
    except OSError:
        return False


def replace(path: Path, data: bytes, mode: int = _MODE) -> None:
    """Replace the file at the path. The caller must be its only writer. Raises StoreError."""
    aside = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        try:
            _write(aside, data, mode)
            os.rename(aside, path)
        except OSError:
            with suppress(OSError):
                aside.unlink()
            raise
        sync(path.parent)
        written = path.read_bytes()
    except OSError as error:
        raise StoreError(f"{error.filename or path}: {error.strerror}") from error
    if written != data:
        raise StoreError(f"{path}: reads back different from what was written: check the disk")


def _write(path: Path, data: bytes, mode: int) -> None:
    with opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW) as descriptor:
        try:
            write(descriptor, data)
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
            # Drop the file's pages from the cache, so that it is read back from the disk.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            error.filename = str(path)
            raise


def sync(directory: Path) -> None:
    with opened(directory, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        os.fsync(descriptor)


@contextmanager
def locked(store: Path, wait_s: float = _LOCK_WAIT_S) -> Iterator[int]:
    """Hold the store's lock; yield the descriptor of the lock's file. Raises StoreError if another
    process, for example a stopped one, holds the lock for `wait_s` seconds."""
    path = store / LOCK
    try:
        store.mkdir(mode=0o755, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise StoreError(f"{error.filename or path}: {error.strerror}") from error
    try:
        until_s = time.monotonic() + wait_s
        while not _try(descriptor):
            if time.monotonic() >= until_s:
                raise StoreError(f"{path}: another process holds the lock")
            time.sleep(_LOCK_POLL_S)
        yield descriptor
    finally:
        os.close(descriptor)


def remove(release: Path) -> None:
    """Remove a release's directory. Raises OSError."""
    for file in release.iterdir():
        file.unlink()
    release.rmdir()


def _try(descriptor: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
