"""A program that ends with its owner at the latest, seen from the owner (see keeper.py)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parents[2]
_END_S: Final = 30.0
_LOG_TAIL_CHARS: Final = 4000
_POLL_S: Final = 0.001


class Process:
    """A running program; its output is appended to `log`. It ends with its owner at the latest."""

    def __init__(
        self,
        command: Sequence[str | Path],
        log: Path,
        environ: Mapping[str, str] | None = None,
        removed_after_owner: Path | None = None,
    ) -> None:
        self.log = log
        keeper = [sys.executable, "-m", "lab.cluster.keeper", str(log)]
        self._keeper = subprocess.Popen(
            [*keeper, str(removed_after_owner or "-"), *map(str, command)],
            cwd=_ROOT,
            env={**os.environ, **(environ or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # only the owner gets a terminal's ^C
        )
        assert self._keeper.stdout is not None
        first_line = self._keeper.stdout.readline()
        if not first_line:
            self._close()
            raise OSError(f"{command[0]} cannot be started; the reason is above")
        self.pid = int(first_line)

    @property
    def running(self) -> bool:
        return self._keeper.poll() is None

    def send(self, number: int) -> None:
        """No effect if it has exited."""
        if self.running:
            os.kill(self.pid, number)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """SIGSTOP meanwhile. A thread stops when it is next scheduled; until the last one has, the
        program answers."""
        self.send(signal.SIGSTOP)
        try:
            while not self._is_stopped():
                time.sleep(_POLL_S)
            yield
        finally:
            self.send(signal.SIGCONT)

    def _is_stopped(self) -> bool:
        threads = Path(f"/proc/{self.pid}/task").glob("*/stat")
        return all(each.read_text().rpartition(")")[2].split()[0] in "TZX" for each in threads)

    def stop(self, number: int = signal.SIGTERM, within_s: float = _END_S) -> None:
        """Signal it and wait for its exit; it is killed after the timeout. Idempotent."""
        self.send(number)
        try:
            self._keeper.wait(within_s)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
        self._close()

    def _close(self) -> None:
        self._keeper.wait(_END_S)
        for pipe in (self._keeper.stdin, self._keeper.stdout):
            assert pipe is not None
            pipe.close()

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-_LOG_TAIL_CHARS:]
