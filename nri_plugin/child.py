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
from collections.abc import Mapping, Sequence
from typing import Final

from nri_plugin.errors import ChildError

_MAX_REPLY_BYTES: Final = 1 << 20


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
        self._whom = whom
        self.command = command
        self.deadline_s = deadline_s
        self.lingering: asyncio.subprocess.Process | None = None

    async def ask(self) -> bytes:
        """What it prints, if it ends well; else ChildError with the last line of its complaint."""
        if self.lingering is not None and self.lingering.returncode is None:
            raise ChildError(
                f"an earlier look at {self._whom} still hangs in the driver"
                f" (pid {self.lingering.pid})"
            )
        try:
            child = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._environment,
                limit=_MAX_REPLY_BYTES,
            )
        except OSError as error:
            raise ChildError(f"{self.command[0]}: {error.strerror}") from error
        try:
            async with asyncio.timeout(self.deadline_s):
                reply, complaint = await child.communicate()
        except TimeoutError as error:
            raise ChildError(f"{self._whom} did not answer in {self.deadline_s:g} s") from error
        finally:
            if child.returncode is None:
                self.lingering = child
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
        if child.returncode != 0:
            lines = complaint.decode(errors="replace").strip().splitlines() or ["no message"]
            raise ChildError(lines[-1])
        return reply
