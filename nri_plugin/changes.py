"""Whether files are still what they were when they were looked at, as the kernel tells (inotify).

To ask costs one system call that waits for no disk, where looking again may: so the event loop can
ask while a container waits. Holds paths, and knows nothing of what is in them. What the kernel does
not tell (a file system mounted over a directory, a change made on the other side of a network) is
found by whoever looks from time to time. Where it can tell nothing, all counts as changed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

_MODIFY, _ATTRIB, _MOVED_FROM, _MOVED_TO = 0x2, 0x4, 0x40, 0x80
_CREATE, _DELETE, _DELETE_SELF, _MOVE_SELF = 0x100, 0x200, 0x400, 0x800
_GONE: Final = _DELETE_SELF | _MOVE_SELF
_CHANGED: Final = _MODIFY | _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _GONE
_APPEARED: Final = _MOVED_TO | _CREATE | _GONE
_MASK_ADD: Final = 0x20000000
"""Two paths may be one directory; neither takes the other's events away."""

_EVENT: Final = struct.Struct("iIII")
_READ_BYTES: Final = 1 << 16
_OVERFLOW: Final = -1
"""What stands for a watch where more has happened than the kernel keeps."""
_MISSING: Final = -2

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.inotify_add_watch.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)


class Changes:
    """One thread at a time may use it. Source: inotify(7)."""

    def __init__(self) -> None:
        self._descriptor = int(_LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._awaited: set[tuple[int, bytes | None]] = set()
        """Watches with the names in them that matter: b"" is the directory itself, None all."""
        self._quiet = False
        if self._descriptor >= 0:
            weakref.finalize(self, os.close, self._descriptor)

    def watch(self, paths: Iterable[Path]) -> None:
        """Begin anew with these, files and directories; to be called before they are looked at."""
        for _ in self._events():
            pass
        self._awaited = {(_OVERFLOW, None)}
        self._quiet = all([self._add(path) for path in paths])

    def none(self) -> bool:
        """Whether nothing has happened to any of them since `watch`."""
        if self._quiet:
            happened = {event for each in self._events() for event in (each, (each[0], None))}
            self._quiet = happened.isdisjoint(self._awaited)
        return self._quiet

    def _add(self, path: Path) -> bool:
        """Of what is not there, the directory is watched in which it would appear."""
        watch, missing = self._watch(path, _CHANGED), None
        while watch == _MISSING and path.parent != path:
            path, missing = path.parent, path
            watch = self._watch(path, _APPEARED)
        if missing is None:
            self._awaited.add((watch, None))
            return watch >= 0
        self._awaited |= {(watch, os.fsencode(missing.name)), (watch, b"")}
        # It may have come between the two.
        return watch >= 0 and not os.path.lexists(missing)

    def _watch(self, path: Path, mask: int) -> int:
        """The watch's number; below zero: none."""
        flags = mask | _MASK_ADD
        watch = int(_LIBC.inotify_add_watch(self._descriptor, os.fsencode(path), flags))
        absent = watch < 0 and ctypes.get_errno() in (errno.ENOENT, errno.ENOTDIR)
        return _MISSING if absent else watch

    def _events(self) -> Iterator[tuple[int, bytes]]:
        """What has happened since the last time: the watch's number, and the name in it."""
        while True:
            try:
                data = os.read(self._descriptor, _READ_BYTES)
            except OSError:  # BlockingIOError: that was all
                return
            at = 0
            while at < len(data):
                watch, _mask, _cookie, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size
                yield watch, data[at : at + length].rstrip(b"\0")
                at += length
