"""Small file systems in memory, as the kernel makes them; no more of Linux' mount calls is used.

Since Linux 5.2 one can be made that lies nowhere yet: it is filled through its descriptor, and then
appears at its place whole, in one step. Where nobody puts it anywhere it is gone with the
descriptor, whatever ends the process. Source: fsopen(2), fsmount(2), move_mount(2); the numbers of
these calls are the same on every architecture.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import Final

from contract import names

_NOSUID: Final = 2
_NODEV: Final = 4
"""As flags of mount(2) and as attributes of fsmount(2), where they are the same bits."""
_MODE: Final = "0755"

_MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT = 429, 430, 431, 432
_CLOEXEC: Final = 1
_SET_STRING: Final = 1
_CREATE: Final = 6
_EMPTY_PATH: Final = 4
_AT_FDCWD: Final = -100

_MNT_DETACH: Final = 2
_UMOUNT_NOFOLLOW: Final = 8
_MAX_STACKED: Final = 16

_MAGIC: Final = 0x01021994
_STATFS_BYTES: Final = 256
"""At least; the type is a long and comes first."""

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.mount.argtypes = (*[ctypes.c_char_p] * 3, ctypes.c_ulong, ctypes.c_char_p)
_LIBC.umount2.argtypes = (ctypes.c_char_p, ctypes.c_int)
_LIBC.syscall.restype = ctypes.c_long


def make_detached(size_bytes: int, inodes: int) -> int | None:
    """A new one that lies nowhere, as the descriptor of its root; None: this kernel knows no such.

    Raises OSError.
    """
    try:
        context = _call(_FSOPEN, b"tmpfs", ctypes.c_uint(_CLOEXEC))
    except OSError as error:
        if error.errno == errno.ENOSYS:
            return None
        raise
    try:
        for key, value in (
            ("source", names.PLUGIN_NAME),
            ("mode", _MODE),
            ("size", str(size_bytes)),
            ("nr_inodes", str(inodes)),
        ):
            _call(
                *(_FSCONFIG, ctypes.c_int(context), ctypes.c_uint(_SET_STRING)),
                *(key.encode(), value.encode(), ctypes.c_int(0)),
            )
        _call(_FSCONFIG, ctypes.c_int(context), ctypes.c_uint(_CREATE), None, None, ctypes.c_int(0))
        attributes = ctypes.c_uint(_NOSUID | _NODEV)
        return _call(_FSMOUNT, ctypes.c_int(context), ctypes.c_uint(_CLOEXEC), attributes)
    finally:
        os.close(context)


def attach(descriptor: int, path: Path) -> None:
    """Put a detached one over the directory `path`. Raises OSError."""
    target = os.fsencode(path)
    flags = ctypes.c_uint(_EMPTY_PATH)
    try:
        _call(_MOVE_MOUNT, ctypes.c_int(descriptor), b"", ctypes.c_int(_AT_FDCWD), target, flags)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def mount(path: Path, size_bytes: int, inodes: int) -> None:
    """A new one over the directory `path`, as any Linux can. Raises OSError."""
    options = f"mode={_MODE},size={size_bytes},nr_inodes={inodes}".encode()
    source, target = names.PLUGIN_NAME.encode(), os.fsencode(path)
    _check(_LIBC.mount(source, target, b"tmpfs", _NOSUID | _NODEV, options), path)


def holds(path: Path) -> bool:
    """Whether `path` lies on one; False where there is nothing."""
    found = ctypes.create_string_buffer(_STATFS_BYTES)
    if _LIBC.statfs(os.fsencode(path), found) != 0:
        return False
    return ctypes.c_long.from_buffer(found).value == _MAGIC


def clear(path: Path) -> None:
    """Unmount and remove `path`. Never deletes a file: ours lie on the tmpfs and go with it."""
    for _ in range(_MAX_STACKED):
        if not os.path.ismount(path):
            break
        _check(_LIBC.umount2(os.fsencode(path), _MNT_DETACH | _UMOUNT_NOFOLLOW), path)
    try:
        path.rmdir()
    except FileNotFoundError:
        return


def _call(number: int, *arguments: object) -> int:
    result = _LIBC.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(result)


def _check(result: int, path: Path) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(path))
