"""Waits for changes of directories, by inotify, for a signal, or for the end of a time.

Python has no inotify; libc has. Where the kernel refuses a watch (fs.inotify.max_user_watches, a
file system without events), the time ends the wait.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

_FLAGS: Final = os.O_NONBLOCK | os.O_CLOEXEC
"""The values of IN_NONBLOCK and IN_CLOEXEC."""
_ATTRIB, _CLOSE_WRITE, _MOVED_FROM, _MOVED_TO = 0x4, 0x8, 0x40, 0x80
_DELETE, _DELETE_SELF, _MOVE_SELF = 0x200, 0x400, 0x800
_MASK: Final = (
    _ATTRIB | _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _DELETE | _DELETE_SELF | _MOVE_SELF
)
"""Events after which a file differs. A write is reported when the file is closed."""
_EVENT: Final = struct.Struct("iIII")
"""Watch, mask, cookie, size of the name that follows."""
_READ_BYTES: Final = 1 << 16


class Changes:
    """stopped: whether SIGTERM or SIGINT arrived."""

    def __init__(self) -> None:
        self.stopped = False
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._inotify = self._libc.inotify_init1(_FLAGS)
        self._woken, self._waker = os.pipe2(_FLAGS)
        self._poll = select.poll()
        self._poll.register(self._woken, select.POLLIN)
        if self._inotify >= 0:
            self._poll.register(self._inotify, select.POLLIN)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def watch(self, directories: Iterable[Path]) -> None:
        """Watch these directories too; idempotent. One that does not exist is left out."""
        for directory in directories:
            self._libc.inotify_add_watch(self._inotify, os.fsencode(directory), _MASK)

    def wait(self, most_s: float) -> None:
        """Return after a change since the last call, a signal, or `most_s`."""
        until_s = time.monotonic() + most_s
        while not self.stopped and (left_s := until_s - time.monotonic()) > 0:
            self._poll.poll(left_s * 1000)
            if self._changed():
                return

    def pause(self, seconds: float) -> None:
        """Return after that time, or a signal."""
        select.select([self._woken], [], [], seconds)

    def _changed(self) -> bool:
        """Read all events. Hidden files, the lock and files in the making, do not count."""
        found = False
        with suppress(OSError):
            while self._inotify >= 0:
                events, at = os.read(self._inotify, _READ_BYTES), 0
                while at < len(events):
                    *_, size = _EVENT.unpack_from(events, at)
                    at += _EVENT.size + size
                    found |= not events[at - size : at].startswith(b".")
        return found

    def _stop(self, *_: object) -> None:
        # A handler returns into the poll, which Python then continues: the byte ends it.
        self.stopped = True
        with suppress(OSError):
            os.write(self._waker, b".")
