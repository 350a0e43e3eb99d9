"""File systems of grants made ahead: everything in them but the grant, which is written when a
container asks.

A blank has its region, which knows the grant's number, its preload lines and its mount points. Most
of what a container's files cost is then paid before it comes. Blanks lie nowhere in the file
system, and are gone with the process that made them. Where the kernel cannot do that there are
none, and files.py fills each in its place. Belongs to the worker thread.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from contract import grant_file, names, region_file

PRELOAD: Final = f"{names.CONTAINER_LIBRARY}\n".encode()
MAX_INODES: Final = 64
_PAGE: Final = 4096
_SLACK_BYTES: Final = 64 * _PAGE
"""For the file system's own records, and the preload lists of containers that share it; what a
tenant could add to its region, and no more."""
_AHEAD: Final = 4
"""Half a megabyte each; a runtime makes a container in fifty milliseconds at the least."""

NewTmpfs = Callable[[int, int], int | None]
"""Size in bytes and inodes to the descriptor of a detached one; None where there is no such."""


@dataclass(frozen=True, slots=True)
class Blank:
    """root: descriptor of a file system that lacks only the grant. Close it."""

    root: int
    grant_id: int


class Blanks:
    """A few blanks for the number of cards that was asked for last."""

    def __init__(self, new_grant_id: Callable[[], int], new_tmpfs: NewTmpfs) -> None:
        self._new_grant_id = new_grant_id
        self._new_tmpfs = new_tmpfs
        self._ready: list[Blank] = []
        self._card_count = 1
        weakref.finalize(self, _close, self._ready)

    def take(self, card_count: int) -> Blank | None:
        """One that was ready, or a new one; None: fill a file system in its place. OSError."""
        if card_count != self._card_count:
            self.close()
            self._card_count = card_count
        return self._ready.pop() if self._ready else self._make()

    def has(self, card_count: int) -> bool:
        """Whether one is ready."""
        return card_count == self._card_count and bool(self._ready)

    def restock(self) -> None:
        """Make ready what the next containers may ask for. Raises OSError."""
        while len(self._ready) < _AHEAD and (blank := self._make()) is not None:
            self._ready.append(blank)

    def close(self) -> None:
        _close(self._ready)

    def _make(self) -> Blank | None:
        root = self._new_tmpfs(size_bytes(self._card_count), MAX_INODES)
        if root is None:
            return None
        grant_id = self._new_grant_id()
        try:
            fill(root, self._card_count, grant_id)
        except BaseException:
            os.close(root)
            raise
        return Blank(root, grant_id)


def _close(blanks: list[Blank]) -> None:
    while blanks:
        os.close(blanks.pop().root)


def size_bytes(card_count: int) -> int:
    """Of the whole file system, for that many cards."""
    region = region_file.Geometry(card_count).file_bytes
    files = (region, grant_file.FILE_BYTES, *(len(PRELOAD) for _ in names.CONTAINER_PRELOADS))
    return sum(-(-size // _PAGE) for size in files) * _PAGE + _SLACK_BYTES


def fill(root: int, card_count: int, grant_id: int) -> None:
    """Everything but the grant, into the directory that `root` is a descriptor of."""
    os.mkdir(names.DIR_DRIVER, 0o755, dir_fd=root)
    for name, mode, data in (
        *((name, 0o444, PRELOAD) for name in names.CONTAINER_PRELOADS.values()),
        (names.FILE_LIBRARY, 0o444, b""),
        *((f"{names.DIR_DRIVER}/{soname}", 0o444, b"") for soname in names.DRIVER_SONAMES),
        (names.FILE_REGION, 0o666, region_file.fresh(card_count, grant_id)),
    ):
        write(root, name, mode, data)


def begin(blank: Blank, card_count: int, created_ns: int) -> None:
    """Say in its region that the container begins now: blanks are older than their containers."""
    descriptor = os.open(names.FILE_REGION, os.O_WRONLY | os.O_CLOEXEC, dir_fd=blank.root)
    try:
        os.pwrite(descriptor, region_file.header(card_count, blank.grant_id, created_ns), 0)
    finally:
        os.close(descriptor)


def write(root: int, name: str, mode: int, data: bytes) -> None:
    """A new file below the directory that `root` is a descriptor of."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o600, dir_fd=root)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)
