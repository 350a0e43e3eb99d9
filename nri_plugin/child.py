"""A question to the driver, put by a child process under a deadline.

A driver in trouble lets calls sleep in the kernel where no signal reaches them; so the event loop
never makes one, and neither does a thread that it would have to wait for at exit. One child at a
time: one that hangs is killed, and not followed by a second before it is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from nri_plugin.errors import ChildError

_MAX_REPLY_BYTES: Final = 1 << 20
_CLOSE_S: Final = 1.0


class Child:
    """Asks by running `command`; `whom` is for people."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        deadline_s: float,
        whom: str,
    ) -> None:
        # The child finds what this process found, wherever it was started.
        path = os.pathsep.join(entry for entry in sys.path if entry)
        self._environment = {**environment, "PYTHONPATH": path}
        self.whom = whom
        self.command = command
        self.deadline_s = deadline_s
        self.lingering: asyncio.subprocess.Process | None = None

    async def ask(self) -> bytes:
        """What it prints, if it ends well; else ChildError with the last line of its complaint."""
        child = await self.start(asyncio.subprocess.DEVNULL)
        try:
            async with asyncio.timeout(self.deadline_s):
                reply, complaint = await child.communicate()
        except TimeoutError as error:
            raise self.late() from error
        finally:
            self.leave(child)
        if child.returncode != 0:
            raise ChildError(_last_line(complaint))
        return reply

    async def start(self, stdin: int) -> asyncio.subprocess.Process:
        """Run the command; ChildError where it cannot be, or where an earlier one still hangs."""
        if self.lingering is not None and self.lingering.returncode is None:
            raise ChildError(
                f"an earlier look at {self.whom} still hangs in the driver"
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
        """Kill it, if it has not ended; nothing waits for it."""
        if child.returncode is None:
            self.lingering = child
            with contextlib.suppress(ProcessLookupError):
                child.kill()

    def late(self) -> ChildError:
        return ChildError(f"{self.whom} did not answer in {self.deadline_s:g} s")


class _EndedError(ChildError):
    """The child exited, instead of answering."""


class Server:
    """A child that stays: it writes one line for each that it reads.

    It is started by the first question, and again where one that had answered before exits; one
    that did not answer is not started again before `min_interval_s` has passed. Questions come one
    at a time. now: a monotonic clock in seconds.
    """

    def __init__(self, child: Child, *, min_interval_s: float, now: Callable[[], float]) -> None:
        self._child = child
        self._min_interval_s = min_interval_s
        self._now = now
        self._process: asyncio.subprocess.Process | None = None
        self._ended = ""
        self._not_before_s = now()

    async def ask(self) -> bytes:
        """The next line that it writes; ChildError where there is none in time."""
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
        """End the child, as the end of its input does; one that hangs is killed. It may be asked
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
                _, complaint = await process.communicate()
        except TimeoutError as error:
            raise self._child.late() from error
        except ConnectionError as error:
            raise _EndedError(f"{self._child.whom}: {error}") from error
        except (OSError, ValueError) as error:
            raise ChildError(f"{self._child.whom}: {error}") from error
        finally:
            if not line:
                self._process = None
                self._child.leave(process)
        raise _EndedError(_last_line(complaint))


def _last_line(complaint: bytes) -> str:
    return (complaint.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
