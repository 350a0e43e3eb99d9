"""Opens files of an image or a container from the host, never outside its root.

The only module that passes a path chosen by a tenant to the kernel. openat2 resolves it relative to
the container's root, so that links, absolute ones too, resolve as in the container; magic links of
/proc, which lead anywhere, are refused. The file type is checked before it is opened for reading: a
FIFO, a device or a socket is never opened. The amount read is limited.

Blocks, and may hang on a broken disk: run it in its own thread, under a deadline. openat2 requires
Linux 5.6; on older kernels, or if a sandbox forbids it, all functions raise OSError (ENOSYS).
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_OPENAT2: Final = 437
"""openat2's system call number on every architecture."""
_HOW: Final = struct.Struct("QQQ")
_NO_MAGIC_LINKS: Final = 0x02
_IN_ROOT: Final = 0x10
_ATTEMPTS: Final = 16
"""openat2 returns EAGAIN while a directory on the path is renamed; then it is retried."""

_SYSCALL: Final = ctypes.CDLL(None, use_errno=True).syscall
_SYSCALL.restype = ctypes.c_long
_SYSCALL.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t)


@contextmanager
def found(root: int, path: str) -> Iterator[int]:
    """Yield an O_PATH descriptor of `path` under `root`, with all links resolved."""
    descriptor = _open(root, path, os.O_PATH | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def readable(looked_at: int) -> Iterator[int]:
    """Yield that descriptor's regular file, open for reading; OSError for other types."""
    mode = os.fstat(looked_at).st_mode
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"it is {kind(mode)}")
    descriptor = os.open(
        f"/proc/self/fd/{looked_at}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    )
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_all(looked_at: int, at_most: int) -> bytes:
    """Return the whole file; OSError if it has more than `at_most` bytes."""
    with readable(looked_at) as descriptor:
        data = os.pread(descriptor, at_most + 1, 0)
    if len(data) > at_most:
        raise OSError(errno.EFBIG, f"it has more than {at_most} bytes")
    return data


def name_of(looked_at: int) -> str:
    """Return the last component of the file's own path, with all links resolved."""
    return os.path.basename(os.readlink(f"/proc/self/fd/{looked_at}"))


def kind(mode: int) -> str:
    for test, text in (
        (stat.S_ISLNK, "a symbolic link"),
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISREG, "a regular file"),
    ):
        if test(mode):
            return text
    return "a special file"


def _open(root: int, path: str, flags: int) -> int:
    name = os.fsencode(path)
    if b"\0" in name:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
    how = _HOW.pack(flags, 0, _IN_ROOT | _NO_MAGIC_LINKS)
    for _ in range(_ATTEMPTS):
        descriptor = int(_SYSCALL(_OPENAT2, root, name, how, len(how)))
        if descriptor >= 0:
            return descriptor
        code = ctypes.get_errno()
        if code not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(code, os.strerror(code), path)
