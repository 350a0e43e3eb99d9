"""Runs the arbiter, which divides each GPU's time among the node's containers, as a child process.

A node has one arbiter. The agent starts it after it has acquired the run directory's lock. When an
arbiter exits, the agent starts another, with backoff. The arbiter's standard input is a pipe that
only the agent holds, so the arbiter exits whenever the agent ends. The arbiter writes a heartbeat
to its standard output, and is killed if the heartbeat stops. While no arbiter runs, each container
uses its own part of each cycle (lease_file.py), so readiness and answers do not depend on the
arbiter.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuslice.contract import names
from gpuslice.kube.log_lines import Line
from nri_plugin.child import cause, end, importing
from nri_plugin.metrics import Metrics

_LOG: Final = logging.getLogger(__name__)

COMMAND: Final = (sys.executable, "-m", "shim", "arbiter", "--heartbeat")
_STDERR_TAIL_BYTES: Final = 4096
_BEATS: Final = 64


@dataclass
class ArbiterProcess:
    """The arbiter's process. leave_s: time from closing its input until it is killed.

    start_s: maximum wait for the first heartbeat. It is long, because Python may start slowly under
    the pod's CPU limit. heartbeat_timeout_s: maximum wait for each later heartbeat. first_retry_s,
    last_retry_s: shortest and longest pause before the next start. After an arbiter that ran for
    `last_retry_s` the pause is the shortest. now: monotonic clock in seconds.
    """

    run_dir: Path
    environment: Mapping[str, str]
    metrics: Metrics
    command: Sequence[str] = COMMAND
    first_retry_s: float = 0.1
    last_retry_s: float = 5.0
    leave_s: float = 1.0
    start_s: float = 30.0
    heartbeat_timeout_s: float = 8 * names.HEARTBEAT_S
    now: Callable[[], float] = time.monotonic

    async def run(self) -> None:
        """Keep an arbiter running until cancelled. Then end the child, by a kill if needed."""
        pause_s = self.first_retry_s
        while True:
            since_s = self.now()
            problem = await self._run_once()
            if self.now() - since_s >= self.last_retry_s:
                pause_s = self.first_retry_s
            _LOG.warning(Line("arbiter exited", problem=problem, again_in_s=round(pause_s, 1)))
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, self.last_retry_s)

    async def _run_once(self) -> str:
        """Start one arbiter, wait until it ends, and return why it ended."""
        try:
            # The child gets its own session, so that no signal of the agent's terminal reaches it.
            child = await asyncio.create_subprocess_exec(
                *self.command,
                str(self.run_dir),
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                env=importing(self.environment),
                start_new_session=True,
            )
        except OSError as error:
            return f"{self.command[0]}: {error.strerror}"
        _LOG.info(Line("arbiter started", pid=child.pid))
        self.metrics.arbiter_starts.inc()
        stderr = asyncio.create_task(_stderr_tail(child))
        try:
            missing_s = await self._follow_heartbeat(child)
            if missing_s:
                return f"killed: no heartbeat for {missing_s:g} s"
            status = await child.wait()
            last = await stderr
        finally:
            self.metrics.arbiter_up.set(0)
            stderr.cancel()
            await self._end(child)
        return cause(status, last)

    async def _follow_heartbeat(self, child: Process) -> float:
        """Read heartbeats. If they stop, kill the child and return the seconds without a heartbeat.
        Return 0 if the child closes its output, which it does at its exit."""
        assert child.stdout is not None
        waiting_s, misses = self.start_s / 2, 0
        # If this process was stopped, a timeout may expire although the pipe contains heartbeats.
        # Therefore one more read follows.
        while misses < 2:
            try:
                async with asyncio.timeout(waiting_s):
                    beats = await child.stdout.read(_BEATS)
            except TimeoutError:
                misses += 1
                continue
            if not beats:
                return 0
            self.metrics.arbiter_up.set(beats.endswith(names.HEARTBEAT_SERVING))
            waiting_s, misses = self.heartbeat_timeout_s / 2, 0
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        return misses * waiting_s

    async def _end(self, child: Process) -> None:
        """Close the child's input, which ends it. Kill the child if it does not exit in time."""
        try:
            await end(child, self.leave_s)
        finally:
            if child.returncode is None:
                _LOG.warning(Line("arbiter killed: it did not exit in time", pid=child.pid))
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.leave_s):
                await child.wait()


async def _stderr_tail(child: Process) -> bytes:
    """Read the child's standard error to its end, and log problems. Return the last bytes."""
    assert child.stderr is not None
    last = b""
    while read := await child.stderr.read(_STDERR_TAIL_BYTES):
        last = (last + read)[-_STDERR_TAIL_BYTES:]
        for line in read.decode(errors="replace").splitlines():
            if line.startswith(names.ARBITER_REPORTS):
                text = line.removeprefix(names.ARBITER_REPORTS)
                _LOG.warning(Line("arbiter reports", problem=text))
    return last
