"""Queries the driver in a child process, under a deadline.

A call into a failing driver may block in the kernel, and then not even SIGKILL ends it at once.
Therefore neither the event loop nor a thread that must be joined at exit makes such calls.
Invariant: a child that hangs is killed, and the next child starts only after it has exited.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nri_plugin.policy.refusals import ChildError

_MAX_REPLY_BYTES: Final = 1 << 20
_EXIT_S: Final = 5.0
_PYTHON: Final = (sys.executable, "-I", "-S", "-c")
_IN_ROOT: Final = """\
import os, sys
from dataclasses import dataclass
os.chroot(sys.argv[1])
os.chdir("/")
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Python code that enters the host's root and then executes the program there. The agent's image
has no `chroot` command, and `preexec_fn` is not safe in a process with threads."""


@dataclass
class Child:
    """Runs `command` once per query. subject: the child's name in messages."""

    command: Sequence[str]
    environment: Mapping[str, str]
    deadline_s: float
    subject: str
    lingering: asyncio.subprocess.Process | None = None

    async def request(self) -> bytes:
        """Run the command and return its output. Raises ChildError with the cause of a failure."""
        child = await self.start(asyncio.subprocess.DEVNULL)
        try:
            async with asyncio.timeout(self.deadline_s):
                reply, stderr = await child.communicate()
        except TimeoutError as error:
            raise self.late() from error
        finally:
            self.leave(child)
        if child.returncode:
            raise ChildError(cause(child.returncode, stderr))
        return reply

    async def start(self, stdin: int) -> asyncio.subprocess.Process:
        """Start the command. Raises ChildError if that fails, or if an earlier child hangs."""
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
                env=importing(self.environment),
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

    async def wait_for_exit(self) -> None:
        """Wait at most _EXIT_S for a killed child to exit. The driver may block it for longer."""
        if self.lingering is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_EXIT_S):
                    await self.lingering.wait()

    def late(self) -> ChildError:
        return ChildError(f"{self.subject} did not answer in {self.deadline_s:g} s")


async def end(process: asyncio.subprocess.Process, timeout_s: float) -> None:
    """Close the process's input, which makes it exit. Wait at most `timeout_s` for that."""
    assert process.stdin is not None
    process.stdin.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await process.wait()


def importing(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Add this process's import path to a child's environment, so that the child can import the
    same modules in any working directory."""
    return {**environment, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}


def cause(returncode: int, stderr: bytes) -> str:
    """Return why a child ended: the last line of its stderr, and the signal that killed it."""
    last = (stderr.decode(errors="replace").strip().splitlines() or [""])[-1]
    if returncode >= 0:
        return last or f"exited with status {returncode} and no message"
    return f"killed by signal {-returncode}" + (last and f": {last}")


def in_root(root: Path, command: Sequence[str]) -> Sequence[str]:
    """Return the command line that runs the host's program with `root` as its root directory. For
    `/` the command is unchanged."""
    return command if root == Path("/") else (*_PYTHON, _IN_ROOT, str(root), *command)
