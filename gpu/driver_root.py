"""Loads the driver's libraries from the driver root: the directory of the driver's files.

In a pod the dynamic loader does not find them: they are the host's, below a mount that
$GPUSLICE_DRIVER_ROOT names. A library is loaded by its full path there; the loader then has it by
its soname, and pynvml's own dlopen returns it. The mount's other libraries stay unused, because the
host's libc need not fit this process: LD_LIBRARY_PATH would be wrong. Without the variable the
loader searches as usual.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path, PurePosixPath
from typing import Final

VARIABLE: Final = "GPUSLICE_DRIVER_ROOT"
NVML: Final = "libnvidia-ml.so.1"
CUDA: Final = "libcuda.so.1"
DIRECTORIES: Final = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib",
    "usr/lib/wsl/lib",
)
"""Directories that nvidia-ctk searches, in its order; then those of Arch and of WSL."""
_MOST_LINKS: Final = 40
"""Linux follows as many in a path."""


class NotFoundError(Exception):
    """The driver root has no such library; the text lists the directories and names the setting."""


def load(soname: str) -> ctypes.CDLL:
    """Return the driver's library. Raises NotFoundError, or OSError if it cannot be loaded."""
    root = os.environ.get(VARIABLE)
    return ctypes.CDLL(str(find(Path(root), soname)) if root else soname)


def find(root: Path, soname: str) -> Path:
    """Return the library's own path, with all links resolved. Raises NotFoundError."""
    for directory in DIRECTORIES:
        try:
            found = resolve(root, f"/{directory}/{soname}")
        except OSError:
            continue
        if found.is_file():
            return found
    raise NotFoundError(
        f"driver root: invalid value {root}: must contain {soname} in one of"
        f" {', '.join(DIRECTORIES)}; install the driver, or set --driver-root to the host's"
        " directory that holds the driver's files (and mount it)"
    )


def resolve(root: Path, path: str) -> Path:
    """Return where `path` leads, with links resolved as if `root` were `/`: the links of Debian's
    alternatives are absolute. Raises OSError for a loop of links."""
    left = list(reversed(PurePosixPath(path).parts[1:]))
    at, links = root, 0
    while left:
        part = left.pop()
        if part == "..":
            at = at.parent if at != root else root
        elif (at / part).is_symlink():
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = PurePosixPath(os.readlink(at / part))
            at = root if target.is_absolute() else at
            left += reversed([each for each in target.parts if each != "/"])
        else:
            at /= part
    return at
