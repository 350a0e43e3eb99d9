"""The driver's device nodes, as character devices without a driver: opening one fails.

A container runtime makes nodes with the same numbers in a container. Programs do not open them, but
reach a simulated GPU through its socket. Only root can make device nodes.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_MAJOR: Final = 195
_UVM_MAJOR: Final = 511
"""The major number of nvidia-uvm. The kernel assigns it dynamically. 511 is usually free."""
CONTROL: Final = {"nvidiactl": (_MAJOR, 255), "nvidia-uvm": (_UVM_MAJOR, 0)}


def name(minor: int) -> str:
    return f"nvidia{minor}"


def make(directory: Path, minors: Iterable[int]) -> bool:
    """Make `directory` and the nodes in it. Return False if this user may not make device nodes."""
    directory.mkdir(exist_ok=True)
    numbers = {**{name(minor): (_MAJOR, minor) for minor in minors}, **CONTROL}
    for node, (major, minor) in numbers.items():
        try:
            with contextlib.suppress(FileExistsError):
                os.mknod(directory / node, stat.S_IFCHR | 0o666, os.makedev(major, minor))
            (directory / node).chmod(0o666)
        except PermissionError:
            return False
    return True
