"""Ends this process where its event loop has been silent for too long, and says where it hangs.

An agent that hangs keeps the lock (lock.py), and no other can serve the node. The liveness probe
has it killed sooner; this is for nodes without one. Python's faulthandler waits in a thread of C,
which needs neither the event loop nor the interpreter. A process that was stopped (SIGSTOP) is
beyond it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
from typing import Final

_STDERR: Final = 2


class Watchdog:
    """From the first `feed` on; until `close`."""

    def __init__(self, silent_s: float) -> None:
        self._silent_s = silent_s
        self._out = _open_stderr()

    def feed(self) -> None:
        """The event loop lives."""
        faulthandler.dump_traceback_later(self._silent_s, exit=True, file=self._out)

    def close(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        if self._out != _STDERR:
            os.close(self._out)


def _open_stderr() -> int:
    """One that never blocks: a reader of the log that hangs may be why we do."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
    with contextlib.suppress(OSError):
        return os.open(f"/proc/self/fd/{_STDERR}", flags)
    return _STDERR
