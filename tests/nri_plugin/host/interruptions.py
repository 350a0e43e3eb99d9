"""Kills a process, or lets a call fail in it, at the test's choice of file system changes."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from nri_plugin.host import tmpfs
from nri_plugin.policy.refusals import StoreError

CALLS: Final = (
    *("open", "mkdir", "write", "fchmod", "ftruncate", "fsync", "posix_fadvise"),
    *("posix_fallocate", "rename", "unlink", "rmdir"),
)
KILLED: Final = -signal.SIGKILL
DONE, REPORTED, NOT_INTERRUPTED, FAILED_OTHERWISE = range(4)


def interrupted(work: Callable[[], object], number: int, error: int = 0) -> int:
    """Do the work in a child process, and return its exit code. Its `number`-th change of the file
    system fails with `error`. If `error` is 0, the process is killed, half-way through a write."""
    pid = os.fork()
    if pid == 0:
        code = FAILED_OTHERWISE
        try:
            happened = _arm(number, error)
            work()
            code = DONE if happened() else NOT_INTERRUPTED
        except StoreError as raised:
            code = REPORTED if os.strerror(error) in str(raised) else FAILED_OTHERWISE
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _arm(number: int, error: int) -> Callable[[], bool]:
    """Prepare the interruption. Return a function that tells whether the change was reached."""
    calls, write = itertools.count(1), os.write

    def counted(real: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        if next(calls) == number:
            if error:
                raise OSError(error, os.strerror(error))
            if real is write:
                write(arguments[0], arguments[1][: len(arguments[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **more)

    for name in CALLS:
        setattr(os, name, partial(counted, getattr(os, name)))
    for name in ("mount", "clear"):
        setattr(tmpfs, name, partial(counted, getattr(tmpfs, name)))
    return lambda: next(calls) > number
