"""Queries the driver in a child process, under a deadline.

With a failing driver a call may block in the kernel where no signal reaches it. Therefore neither
the event loop nor a thread that must be joined at exit makes such calls. Invariant: one child at a
time; a child that hangs is killed, and the next one starts only after it has exited.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from nri_plugin.policy.refusals import ChildError

_MAX_REPLY_BYTES: Final = 1 << 20
_CLOSE_S: Final = 1.0


class Child:
    """Runs `command` for each query. `subject` names the child in messages."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        deadline_s: float,
        subject: str,
    ) -> None:
        self._environment = importing(environment)
        self.subject = subject
        self.command = command
        self.deadline_s = deadline_s
        self.lingering: asyncio.subprocess.Process | None = None

    async def request(self) -> bytes:
        """Return the child's output. On failure, ChildError has the last line of its stderr."""
        child = await self.start(asyncio.subprocess.DEVNULL)
        try:
            async with asyncio.timeout(self.deadline_s):
                reply, stderr = await child.communicate()
        except TimeoutError as error:
            raise self.late() from error
        finally:
            self.leave(child)
        if child.returncode != 0:
            raise ChildError(last_line(stderr))
        return reply

    async def start(self, stdin: int) -> asyncio.subprocess.Process:
        """Run the command; ChildError if that fails, or if an earlier child still hangs."""
        if self.lingering is not None and self.lingering.returncode is None:
            raise ChildError(
                f"an earlier query of {self.subject} still hangs in the driver"
                f" (pid {self.lingering.pid})"
            )
        try:
            return await asyncio.create_subprocess_exec(
                *self.command,
                stdin=stdin,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._environment,
                limit=_MAX_REPLY_BYTES,
            )
        except OSError as error:
            raise ChildError(f"{self.command[0]}: {error.strerror}") from error

    def leave(self, child: asyncio.subprocess.Process) -> None:
        """Kill the child if it has not exited; do not wait for it."""
        if child.returncode is None:
            self.lingering = child
            with contextlib.suppress(ProcessLookupError):
                child.kill()

    def late(self) -> ChildError:
        return ChildError(f"{self.subject} did not answer in {self.deadline_s:g} s")


class _EndedError(ChildError):
    """The child exited instead of answering."""


class Server:
    """A long-running child: it writes one line for each line that it reads.

    The first query starts it, and a query after it has exited restarts it. After a failed query no
    child is started for `min_interval_s`. Queries must not overlap. now: a monotonic clock in
    seconds.
    """

    def __init__(self, child: Child, *, min_interval_s: float, now: Callable[[], float]) -> None:
        self._child = child
        self._min_interval_s = min_interval_s
        self._now = now
        self._process: asyncio.subprocess.Process | None = None
        self._ended = ""
        self._not_before_s = now()

    async def request(self) -> bytes:
        """Return the next line of output; ChildError if none arrives in time."""
        if self._process is None and self._now() < self._not_before_s:
            raise ChildError(self._ended)
        try:
            if self._process is not None:
                with contextlib.suppress(_EndedError):
                    return await self._answer(self._process)
            self._process = await self._child.start(asyncio.subprocess.PIPE)
            return await self._answer(self._process)
        except ChildError as error:
            self._ended = str(error)
            self._not_before_s = self._now() + self._min_interval_s
            raise

    async def close(self) -> None:
        """Close the child's input, which ends it; kill it if it hangs. `request` may be called
        again."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await process.wait()
        finally:
            self._child.leave(process)

    async def _answer(self, process: asyncio.subprocess.Process) -> bytes:
        assert process.stdin is not None and process.stdout is not None
        line = b""
        try:
            async with asyncio.timeout(self._child.deadline_s):
                process.stdin.write(b"\n")
                await process.stdin.drain()
                line = await process.stdout.readline()
                if line:
                    return line
                _, stderr = await process.communicate()
        except TimeoutError as error:
            raise self._child.late() from error
        except ConnectionError as error:
            raise _EndedError(f"{self._child.subject}: {error}") from error
        except (OSError, ValueError) as error:
            raise ChildError(f"{self._child.subject}: {error}") from error
        finally:
            if not line:
                self._process = None
                self._child.leave(process)
        raise _EndedError(last_line(stderr))


def importing(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment of a child that imports what this process imports, whatever its
    working directory."""
    return {**environment, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}


def last_line(stderr: bytes) -> str:
    return (stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
