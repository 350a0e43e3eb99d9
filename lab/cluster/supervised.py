"""A program that ends with its owner at the latest; needs no root and no namespace.

The kernel kills the program when the thread that started it exits (PR_SET_PDEATHSIG). That thread
exits with the owner, whatever signal ends it. A program here must start no child process,
because the kernel would not kill the child.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lab import tail

_ROOT: Final = Path(__file__).resolve().parents[2]
_END_S: Final = 30.0
_STARTER: Final = ThreadPoolExecutor(1)
"""The one thread that starts all programs. The caller's own thread may exit before the owner."""
_UNLESS_ORPHANED: Final = 'test "$PPID" = "$0" && exec "$@"'
"""Starts no program if the owner ended before setpriv ran, which PR_SET_PDEATHSIG misses."""


class Process:
    """A running program, whose output is appended to `log`. hostname: the host name that the
    program sees, as in a pod; "" is this host's name."""

    def __init__(
        self,
        command: Sequence[str | Path],
        log: Path,
        environ: Mapping[str, str] | None = None,
        hostname: str = "",
    ) -> None:
        self.log = log
        guard = ["setpriv", "--pdeathsig=KILL", "sh", "-c", _UNLESS_ORPHANED, str(os.getpid())]
        with log.open("ab") as out:
            self._program = _STARTER.submit(
                subprocess.Popen[bytes],
                [*_in_uts_namespace(hostname), *guard, *map(str, command)],
                cwd=_ROOT,
                env={**os.environ, **(environ or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,  # a terminal's ^C reaches only the owner
            ).result()
        self.pid = self._program.pid

    @property
    def running(self) -> bool:
        return self._program.poll() is None

    def send(self, number: int) -> None:
        """Send a signal. This has no effect if the program has exited."""
        self._program.send_signal(number)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop the program with SIGSTOP during the context. On entry, wait until its last thread
        has stopped, because until then it answers."""
        self.send(signal.SIGSTOP)
        try:
            threads = Path(f"/proc/{self.pid}/task")
            while any(
                each.read_text().rpartition(") ")[2][0] not in "TZX"
                for each in threads.glob("*/stat")
            ):
                time.sleep(0.001)
            yield
        finally:
            self.send(signal.SIGCONT)

    def stop(self, number: int = signal.SIGTERM, within_s: float = _END_S) -> None:
        """Send the signal and wait for the exit. Kill the program after the timeout. Idempotent."""
        self.send(number)
        try:
            self._program.wait(within_s)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            self._program.wait(_END_S)

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def log_tail(self) -> str:
        return tail(self.log)


def _in_uts_namespace(hostname: str) -> Sequence[str]:
    """Return a command prefix that sets the host name. The process ID stays the same."""
    if not hostname:
        return ()
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    return ("unshare", *user, "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', hostname)
