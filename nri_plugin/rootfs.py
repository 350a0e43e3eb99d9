"""Looks at a container that stands but has not run: is the limit really what it will meet?

From the host's side, at the image: its own /etc/ld.so.preload would be lost under ours, and a
symbolic link on the way could be removed from inside, and our file with it. Then from the
process's side, through /proc/PID/root: each of our places must show the very file that we mounted,
whatever images, volumes and other plugins have stacked since.

Every path component is opened without following links: nothing in an image leads the look astray.
Blocks, and may hang on a broken disk: belongs in a thread of its own, under a deadline.
Source: containerd's bundle layout (io.containerd.runtime.v2.task/NAMESPACE/ID/{rootfs,init.pid}).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from contract import names
from nri_plugin.errors import Reason, Refused, refuse
from nri_plugin.model import Mount

_TASKS: Final = "io.containerd.runtime.v2.task/k8s.io"
_DIRECTORY: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def examine(containerd_state: Path, container_id: str, mounts: Sequence[Mount]) -> None:
    """Raise Refused unless the container will meet our `mounts`; `container_id` is a file name."""
    bundle = containerd_state / _TASKS / container_id
    try:
        with _directory(bundle / "rootfs") as root:
            check_image(root)
        process = Path("/proc", (bundle / "init.pid").read_text().strip(), "root")
        with _directory(process) as root:
            check_view(root, mounts)
    except (OSError, ValueError) as error:
        raise Refused(refuse(Reason.ROOTFS_UNKNOWN, problem=error)) from error


def check_image(root: int) -> None:
    """`root`: descriptor of the image's root on the host, where our mounts are not to be seen.

    An empty regular file is what the runtime itself makes to mount on.
    """
    status = _status(root, names.CONTAINER_PRELOAD)
    if status is not None and not (stat.S_ISREG(status.st_mode) and status.st_size == 0):
        what = f"{status.st_size} bytes" if stat.S_ISREG(status.st_mode) else _kind(status.st_mode)
        raise Refused(refuse(Reason.IMAGE_PRELOAD, what=what))
    status = _status(root, names.CONTAINER_DIR)
    if status is not None and not stat.S_ISDIR(status.st_mode):
        raise Refused(
            refuse(Reason.IMAGE_PATH, what=_kind(status.st_mode), path=names.CONTAINER_DIR)
        )


def check_view(root: int, mounts: Sequence[Mount]) -> None:
    """`root`: descriptor of the process's own root; sources are the host's."""
    for mount in mounts:
        inside = _status(root, mount.destination)
        ours = os.stat(mount.source)
        if inside is None:
            problem = "it is not there"
        elif (inside.st_dev, inside.st_ino) != (ours.st_dev, ours.st_ino):
            problem = f"{_kind(inside.st_mode)} of {inside.st_size} bytes"
        else:
            continue
        raise Refused(refuse(Reason.VIEW_DIFFERS, path=mount.destination, problem=problem))


@contextmanager
def _directory(path: Path) -> Iterator[int]:
    # Without O_NOFOLLOW: /proc/PID/root is a link, to follow; the other path is the runtime's own.
    descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _status(root: int, path: str) -> os.stat_result | None:
    """lstat of `path` under `root`; None if it is not there. A link on the way refuses."""
    *parents, name = path.strip("/").split("/")
    current = os.dup(root)
    try:
        for depth, part in enumerate(parents):
            try:
                below = os.open(part, _DIRECTORY, dir_fd=current)
            except FileNotFoundError:
                return None
            except NotADirectoryError as error:
                kind = _kind(os.stat(part, dir_fd=current, follow_symlinks=False).st_mode)
                place = "/" + "/".join(parents[: depth + 1])
                raise Refused(refuse(Reason.IMAGE_PATH, what=kind, path=place)) from error
            os.close(current)
            current = below
        try:
            return os.stat(name, dir_fd=current, follow_symlinks=False)
        except FileNotFoundError:
            return None
    finally:
        os.close(current)


def _kind(mode: int) -> str:
    for test, text in (
        (stat.S_ISLNK, "a symbolic link"),
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISREG, "a regular file"),
    ):
        if test(mode):
            return text
    return "a special file"
