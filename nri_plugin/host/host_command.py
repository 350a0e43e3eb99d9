"""Command lines that run a program of the host from the agent's pod.

Its image has neither chroot nor nsenter. A Python of its own enters the host's root or namespaces
and becomes the program: preexec_fn is not safe in a process with threads.
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
# Python has os.setns from 3.12 on. After mnt, the last, paths are the host's.
_IN_NAMESPACES: Final = """\
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
for space in [os.open(f"/proc/1/ns/{name}", os.O_RDONLY) for name in ("uts", "ipc", "net", "mnt")]:
    if libc.setns(space, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "setns")
    os.close(space)
os.chdir("/")
os.execvp(sys.argv[1], sys.argv[1:])
"""


def in_root(root: Path, command: Sequence[str]) -> Sequence[str]:
    """Run below that root directory; unchanged for /."""
    return command if root == Path("/") else (*_PYTHON, _IN_ROOT, str(root), *command)


def in_namespaces(command: Sequence[str]) -> Sequence[str]:
    """Run in the namespaces of the host's first process, which hostPID shows."""
    return (*_PYTHON, _IN_NAMESPACES, *command)
