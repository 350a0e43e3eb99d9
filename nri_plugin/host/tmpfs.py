"""Mounts and removes small tmpfs file systems, by mount(2) and umount2(2)."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

from contract import names

_NOSUID: Final = 2
_NODEV: Final = 4
_MODE: Final = "0755"

_MNT_DETACH: Final = 2
_UMOUNT_NOFOLLOW: Final = 8
_MAX_STACKED: Final = 16

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.mount.argtypes = (*[ctypes.c_char_p] * 3, ctypes.c_ulong, ctypes.c_char_p)
_LIBC.umount2.argtypes = (ctypes.c_char_p, ctypes.c_int)


def mount(path: Path, size_bytes: int, inodes: int, source: str = names.PLUGIN_NAME) -> None:
    """Mount a new one over the directory `path`. source: its name in mount tables, by which those
    of grants are known. Raises OSError."""
    options = f"mode={_MODE},size={size_bytes},nr_inodes={inodes}".encode()
    target = os.fsencode(path)
    _check(_LIBC.mount(source.encode(), target, b"tmpfs", _NOSUID | _NODEV, options), path)


def clear(path: Path) -> None:
    """Unmount and remove `path`. Deletes no files: ours are on the tmpfs and vanish with it."""
    for _ in range(_MAX_STACKED):
        if not os.path.ismount(path):
            break
        _check(_LIBC.umount2(os.fsencode(path), _MNT_DETACH | _UMOUNT_NOFOLLOW), path)
    try:
        path.rmdir()
    except FileNotFoundError:
        return


def _check(result: int, path: Path) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(path))
