"""The parent of one program, which ends with the program's owner; needs no root and no namespace.

Its standard input is a pipe that the owner holds. When the owner ends, by any signal, the pipe
closes; this process then kills the program, removes the given directory, and exits. If this process
itself is killed, the kernel kills the program (PR_SET_PDEATHSIG). It is for programs that start no
others. The first line on standard output is the program's process number.

    python -m lab.cluster.keeper LOG REMOVED_AFTER_THE_OWNER COMMAND...     (`-`: nothing is
    removed)
"""

from __future__ import annotations

import ctypes
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_REMOVING_S: Final = 10.0
_LIBC: Final = ctypes.CDLL(None)


def _exit_with_parent(keeper: int) -> None:
    """Runs in the child, before exec: the kernel signals only a parent's end that comes later."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:
        os.kill(os.getpid(), signal.SIGKILL)


def _remove(directory: Path) -> None:
    """Other programs of the same owner may still be writing there for a moment."""
    deadline = time.monotonic() + _REMOVING_S
    while directory.exists() and time.monotonic() < deadline:
        shutil.rmtree(directory, ignore_errors=True)
        time.sleep(0.05)


def main(log: Path, removed: str, command: list[str]) -> int:
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    keeper = os.getpid()

    def prepare() -> None:
        for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_DFL)
        _exit_with_parent(keeper)

    with log.open("ab") as out:
        program = (
            subprocess.Popen(  # one thread, and nothing between fork and exec that takes a lock
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, preexec_fn=prepare
            )
        )
    sys.stdout.write(f"{program.pid}\n")
    sys.stdout.flush()
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        selector.register(os.pidfd_open(program.pid), selectors.EVENT_READ)
        orphaned = any(key.fileobj is sys.stdin for key, _ in selector.select())
    if orphaned:
        program.kill()
    code = program.wait()
    if orphaned and removed != "-":
        _remove(Path(removed))
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
