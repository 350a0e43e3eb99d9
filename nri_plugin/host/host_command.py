"""Command lines that run a program of the host from the agent's pod.

The agent's image has no chroot. A Python process enters the host's root and becomes the program:
preexec_fn is not safe in a process with threads.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_PYTHON: Final = (sys.executable, "-I", "-S", "-c")
_IN_ROOT: Final = """\
import os, sys
os.chroot(sys.argv[1])
os.chdir("/")
os.execvp(sys.argv[2], sys.argv[2:])
"""


def in_root(root: Path, command: Sequence[str]) -> Sequence[str]:
    """Run below that root directory; unchanged for /."""
    return command if root == Path("/") else (*_PYTHON, _IN_ROOT, str(root), *command)
