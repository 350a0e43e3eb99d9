"""Drives a program at a pty: types lines into it and records its output.

Types a line when a shell's prompt is there, so that the output is as a user would see it.
"""

from __future__ import annotations

import errno
import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_PROMPT: Final = re.compile(r"[$#] $")
_CONTROL: Final = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")
_CHUNK_BYTES: Final = 65536


class TerminalError(RuntimeError):
    """The program prints nothing more, and shows no prompt; the text is what it printed."""


def typed(
    command: Sequence[str | Path],
    lines: Sequence[str],
    environ: Mapping[str, str],
    within_s: float,
) -> tuple[int, str]:
    """The program's exit status, and its whole output. Raises TerminalError.

    lines: each is typed when the prompt is there; the last one should end the program.
    """
    deadline = time.monotonic() + within_s
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ, start_new_session=True
        ) as program:
            os.close(theirs)
            try:
                shown = ""
                for line in lines:
                    seen = len(shown)
                    while not _PROMPT.search(shown, seen):
                        if not (more := _more(ours, deadline, shown)):
                            return program.wait(), shown
                        shown += more
                    os.write(ours, f"{line}\n".encode())
                while more := _more(ours, deadline, shown):
                    shown += more
            except BaseException:
                program.kill()
                raise
            return program.wait(), shown
    finally:
        os.close(ours)


def _more(terminal: int, deadline: float, shown: str) -> str:
    """Empty if the program has exited."""
    left = deadline - time.monotonic()
    if left <= 0 or not select.select([terminal], [], [], left)[0]:
        raise TerminalError(f"no more output after:\n{shown}")
    try:
        read = os.read(terminal, _CHUNK_BYTES)
    except OSError as error:
        if error.errno == errno.EIO:  # the other end is closed
            return ""
        raise
    return _CONTROL.sub("", read.decode(errors="replace"))
