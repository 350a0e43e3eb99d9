"""Opens files of an image or a container from the host, never outside its root.

Only this module passes paths that a tenant has chosen to the kernel. openat2 resolves such a path,
including its links, within the container's root. It refuses magic links of /proc, which may lead
out of the root. A FIFO, a device or a socket is never opened. The amount read is limited.

Blocks, and may hang on a broken disk. openat2 requires Linux 5.6; without it all functions raise
OSError (ENOSYS).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from gpuslice.ffi import libc
from gpuslice.ffi.libc import ffi
from nri_plugin.host.descriptors import opened

_OPENAT2: Final = 437
"""Number of the system call openat2, the same on every architecture."""
_HOW_BYTES: Final = ffi.sizeof("struct open_how")
_NO_MAGIC_LINKS: Final = 0x02
_IN_ROOT: Final = 0x10
_KINDS: Final = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a directory",
    stat.S_IFREG: "a regular file",
}
_ATTEMPTS: Final = 16
"""Number of tries of openat2, which may fail with EAGAIN while anything is renamed or mounted."""


@contextmanager
def lookup(root: int, path: str) -> Iterator[int]:
    """Yield an O_PATH descriptor of `path` under `root`, with all links resolved."""
    descriptor = _open(root, path, os.O_PATH | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def readable(looked_at: int) -> Iterator[int]:
    """Open a looked-up regular file for reading; yield the descriptor. OSError for other types."""
    mode = os.fstat(looked_at).st_mode
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"it is {kind(mode)}")
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
    with opened(f"/proc/self/fd/{looked_at}", flags) as descriptor:
        yield descriptor


def read_all(looked_at: int, at_most: int) -> bytes:
    """Return the whole content of a looked-up file. OSError if it has more than `at_most` bytes."""
    with readable(looked_at) as descriptor:
        data = os.pread(descriptor, at_most + 1, 0)
    if len(data) > at_most:
        raise OSError(errno.EFBIG, f"it has more than {at_most} bytes")
    return data


def name_of(looked_at: int) -> str:
    """Return a looked-up file's own name. A link to the file may have another name."""
    return os.path.basename(os.readlink(f"/proc/self/fd/{looked_at}"))


def kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "a special file")


def _open(root: int, path: str, flags: int) -> int:
    name = os.fsencode(path)
    if b"\0" in name:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
    how = ffi.new("struct open_how *", (flags, 0, _IN_ROOT | _NO_MAGIC_LINKS))
    arguments = ffi.cast("int", root), ffi.new("char[]", name), how, ffi.cast("size_t", _HOW_BYTES)
    for _ in range(_ATTEMPTS):
        descriptor = int(libc.LIBC.syscall(_OPENAT2, *arguments))
        if descriptor >= 0:
            return descriptor
        if ffi.errno not in (errno.EAGAIN, errno.EINTR):
            break
    raise libc.error(path)
