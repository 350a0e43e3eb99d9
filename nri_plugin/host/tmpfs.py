"""Mounts and removes small tmpfs file systems, by mount(2) and umount2(2).

On a kernel with SELinux a mount option gives all files the label that containers may use
(selinux.py). If the policy does not know this label, the kernel refuses the option. The files then
get the policy's label for files in memory, and Policy.objection tells whether a container may use
them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gpuslice.contract import names
from gpuslice.ffi import libc
from nri_plugin.host import selinux

_NOSUID: Final = 2
_NODEV: Final = 4
_MODE: Final = "0755"

_MNT_DETACH: Final = 2
_UMOUNT_NOFOLLOW: Final = 8
_MAX_STACKED: Final = 16


def _mount(path: Path, source: str, options: str) -> None:
    target, flags = os.fsencode(path), _NOSUID | _NODEV
    if libc.LIBC.mount(source.encode(), target, b"tmpfs", flags, options.encode()) != 0:
        raise libc.error(path)


def mount(
    path: Path,
    size_bytes: int,
    inodes: int,
    source: str = names.PLUGIN_NAME,
    label: str | None = None,
    call: Callable[[Path, str, str], None] = _mount,
) -> None:
    """Mount a new tmpfs over the directory `path`. source: the tmpfs' name in mount tables; the
    default identifies grants. label: the SELinux label of the files; "": the policy's default;
    None: selinux.label(). Raises OSError."""
    options = f"mode={_MODE},size={size_bytes},nr_inodes={inodes}"
    wanted = selinux.label() if label is None else label
    if wanted:
        try:
            call(path, source, f'{options},context="{wanted}"')
            return
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
    call(path, source, options)


def clear(path: Path) -> None:
    """Unmount and remove the directory `path`. Its files vanish with the tmpfs."""
    for _ in range(_MAX_STACKED):
        if libc.LIBC.umount2(os.fsencode(path), _MNT_DETACH | _UMOUNT_NOFOLLOW) != 0:
            error = libc.error(path)
            if error.errno in (errno.EINVAL, errno.ENOENT):  # nothing is mounted there
                break
            raise error
    try:
        path.rmdir()
    except FileNotFoundError:
        return
