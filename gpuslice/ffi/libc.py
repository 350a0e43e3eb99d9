"""Functions of libc that Python's os module lacks: mounts, statfs, system calls by number."""

from __future__ import annotations

import os
from typing import Any, Final

from gpuslice.ffi.libc_ffi import ffi

__all__ = ["LIBC", "error", "ffi"]
LIBC: Final[Any] = ffi.dlopen(None)


def error(path: str | os.PathLike[str]) -> OSError:
    """Return the OSError for the errno of the call that has just failed."""
    return OSError(ffi.errno, os.strerror(ffi.errno), str(path))
