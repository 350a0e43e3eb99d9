"""Runs the arbiter, which divides each GPU's time among the node's containers, as a child process.

One per node: the agent starts it once it holds the run directory's lock, and starts another one,
with backoff, when it exits. Its standard input is a pipe that only this process holds, so that it
exits with the agent, however that ends. Without it each container keeps its own part of each cycle
(contract/lease_file.py); therefore it affects neither readiness nor any answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from kube.log_lines import Line
from nri_plugin.child import importing, last_line
from nri_plugin.metrics import Metrics

_LOG: Final = logging.getLogger(__name__)

COMMAND: Final = (sys.executable, "-m", "shim", "arbiter")
_COMPLAINT_BYTES: Final = 4096


class Arbiter:
    """run_dir: of the containers' directories. leave_s: for the child to exit, before it is killed.

    first_retry_s, last_retry_s: bounds of the pause before another one is started; one that ran for
    `last_retry_s` is followed at once by the shortest. now: a monotonic clock in seconds.
    """

    def __init__(
        self,
        run_dir: Path,
        environment: Mapping[str, str],
        metrics: Metrics,
        *,
        command: Sequence[str] = COMMAND,
        first_retry_s: float = 0.1,
        last_retry_s: float = 5.0,
        leave_s: float = 1.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command = (*command, str(run_dir))
        self._environment = importing(environment)
        self._metrics = metrics
        self._first_retry_s = first_retry_s
        self._last_retry_s = last_retry_s
        self._leave_s = leave_s
        self._now = now

    async def run(self) -> None:
        """Run until cancelled; the child has then exited, or is being killed."""
        pause_s = self._first_retry_s
        while True:
            since_s = self._now()
            problem = await self._run_once()
            if self._now() - since_s >= self._last_retry_s:
                pause_s = self._first_retry_s
            _LOG.warning(Line("arbiter exited", problem=problem, again_in_s=round(pause_s, 1)))
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, self._last_retry_s)

    async def _run_once(self) -> str:
        """Return why it ended."""
        try:
            # A session of its own: a signal of the agent's terminal is not for the child.
            child = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=PIPE,
                stdout=DEVNULL,
                stderr=PIPE,
                env=self._environment,
                start_new_session=True,
            )
        except OSError as error:
            return f"{self._command[0]}: {error.strerror}"
        _LOG.info(Line("arbiter started", pid=child.pid))
        self._metrics.arbiter_starts.inc()
        self._metrics.arbiter_up.set(1)
        try:
            complaint = await _complaint(child)
            status = await child.wait()
        finally:
            self._metrics.arbiter_up.set(0)
            await self._end(child)
        cause = f"signal {-status}" if status < 0 else f"status {status}"
        return f"{cause}: {last_line(complaint)}" if complaint else cause

    async def _end(self, child: Process) -> None:
        """Close its input, which ends it; kill it if it does not exit in time."""
        assert child.stdin is not None
        child.stdin.close()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._leave_s):
                    await child.wait()
        finally:
            if child.returncode is None:
                _LOG.warning(Line("arbiter killed: it did not exit in time", pid=child.pid))
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._leave_s):
                await child.wait()


async def _complaint(child: Process) -> bytes:
    """Read its standard error until it ends; return the last bytes of it."""
    assert child.stderr is not None
    last = b""
    while read := await child.stderr.read(_COMPLAINT_BYTES):
        last = (last + read)[-_COMPLAINT_BYTES:]
    return last
