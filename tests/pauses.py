"""A process that may not pause: the kernel ends it at its first nanosleep.

When the library waits for other processes, it always calls nanosleep. Python and the simulated
driver never do. So a process that completes has not waited, however busy the machine is.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from typing import Final

_NANOSLEEP: Final = {"x86_64": 35, "aarch64": 101}[platform.machine()]
_NO_NEW_PRIVILEGES: Final = 38
_SECCOMP: Final = 22
_FILTER_MODE: Final = 2
_LOAD_NUMBER: Final = (0x20, 0, 0, 0)
_KILL_PROCESS: Final = (0x06, 0, 0, 0x80000000)
_ALLOW: Final = (0x06, 0, 0, 0x7FFF0000)


def forbid() -> None:
    """Forbid pauses from now on, for this thread and those that it starts."""
    unless_it_is = (0x15, 0, 1, _NANOSLEEP)
    lines = (_LOAD_NUMBER, unless_it_is, _KILL_PROCESS, _ALLOW)
    # The structures sock_filter and sock_fprog of linux/filter.h.
    written = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in lines))
    program = struct.pack("@HP", len(lines), ctypes.addressof(written))
    libc = ctypes.CDLL(None, use_errno=True)
    for failed in (
        libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0),
        libc.prctl(_SECCOMP, _FILTER_MODE, program),
    ):
        if failed:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
