"""Looks at a container that stands but has not run: is the limit really what it will meet?

From the host's side, at the image: its own preload files are read, since ours lie over them, and a
symbolic link on the way could be removed from inside, and our file with it. Then from the
process's side, through /proc/PID/root: each of our places must show the very file that we mounted,
whatever images, volumes and other plugins have stacked since; and the program that is about to
start is looked at (entrypoint.py).

To our own places every path component is opened without following links; where links must be
followed, inside.py does it. Nothing in an image leads the look astray.
Blocks, and may hang on a broken disk: belongs in a thread of its own, under a deadline.
Source: containerd's bundle layout (bundle.py).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from contract import names
from nri_plugin import (
    bundle,
    entrypoint,
    inside,
    mountinfo,
    preload_list,
)
from nri_plugin.errors import Reason, Refused, refused
from nri_plugin.inside import kind
from nri_plugin.model import Mount

_LOOK: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY: Final = _LOOK | os.O_DIRECTORY

File = tuple[int, int]
"""A file by its device and inode."""


@dataclass(frozen=True, slots=True)
class Found:
    """What the look brought to light, of a container that meets our mounts.

    preloads: by the place of a preload file, what the image's own names. out_of_reach: why no limit
    reaches the entry point; empty where one does. waits_in: the runtime's program that will become
    the entry point.
    """

    preloads: Mapping[str, Sequence[bytes]]
    out_of_reach: str
    waits_in: File


@dataclass(frozen=True, slots=True)
class Kept:
    """Where the host keeps what limits are made of."""

    run_dir: Path
    store_dir: Path
    nri_socket: Path


def examine(
    containerd_state: Path,
    container_id: str,
    mounts: Sequence[Mount],
    kept: Kept,
    forwarded: bool,
    allowed: AbstractSet[str] = frozenset(),
) -> Found:
    """Raise Refused unless the container will meet our `mounts`; `container_id` is a file name.

    forwarded: the driver's libraries are forwarders, as in strict mode. allowed: capabilities that
    the operator allows though they loosen the limit.
    """
    place = bundle.of(containerd_state, container_id)
    try:
        with _directory(place / "rootfs") as root:
            preloads = check_image(root)
        process, config = bundle.init(place), bundle.config(place)
        check_capabilities(config, process, allowed)
        check_volumes(process, {mount.destination for mount in mounts}, kept)
        with _directory(process / "root") as root:
            check_view(root, mounts)
            machine = entrypoint.MACHINES[os.uname().machine]
            why = entrypoint.out_of_reach(root, config.process, machine, forwarded)
        waits_in = _runs(process)
    except (OSError, ValueError) as error:
        raise refused(Reason.ROOTFS_UNKNOWN, problem=error) from error
    return Found(preloads, why, waits_in)


def strong_beside(
    containerd_state: Path, container_id: str, allowed: AbstractSet[str] = frozenset()
) -> str:
    """The capability with which a container without a share takes away the limits of containers
    whose processes it sees; empty: none. Raises OSError."""
    place = bundle.of(containerd_state, container_id)
    config = bundle.config(place)
    return _loosening(config, bundle.init(place), allowed) if config.sees_others else ""


class Proof(Enum):
    """Of a container that was told to start; values are what the log says of it."""

    WAITS = "its program does not run yet"
    HOLDS = "limit in place"
    ENDED = "ended"


def prove(
    containerd_state: Path,
    container_id: str,
    mounts: Sequence[Mount],
    kept: Kept,
    waits_in: File | None,
    allowed: AbstractSet[str] = frozenset(),
) -> Proof:
    """Raise Refused or OSError where what the container's program meets is not our `mounts`, or it
    can take them away.

    waits_in: what its process ran before its start, as in Found; None: it has been started.
    """
    place = bundle.of(containerd_state, container_id)
    with ExitStack() as stack:
        try:
            # Held open, the process's directory never becomes that of another one of its number.
            init = bundle.init(place)
            process = Path("/proc/self/fd", str(stack.enter_context(_directory(init))))
            if _runs(process) == waits_in:
                return Proof.WAITS
        except OSError:
            return Proof.ENDED
        try:
            check_volumes(process, {mount.destination for mount in mounts}, kept)
            check_view(stack.enter_context(_directory(process / "root")), mounts)
            check_capabilities(bundle.config(place), process, allowed)
        except (OSError, Refused):
            try:
                _runs(process)
            except OSError:
                return Proof.ENDED
            raise
    return Proof.HOLDS


def check_image(root: int) -> Mapping[str, Sequence[bytes]]:
    """What the image's own preload files name, by their place; raises Refused.

    `root`: descriptor of the image's root on the host, where our mounts are not to be seen. An
    empty regular file is what the runtime itself makes to mount on.
    """
    preloads = {place: _own_preload(root, place) for place in names.CONTAINER_PRELOADS}
    with _at(root, names.CONTAINER_DIR) as found:
        mode = stat.S_IFDIR if found is None else os.fstat(found).st_mode
    if not stat.S_ISDIR(mode):
        raise refused(Reason.IMAGE_PATH, what=kind(mode), path=names.CONTAINER_DIR)
    return {place: entries for place, entries in preloads.items() if entries}


def _own_preload(root: int, place: str) -> Sequence[bytes]:
    with _at(root, place) as found:
        if found is None:
            return ()
        status = os.fstat(found)
        if not stat.S_ISREG(status.st_mode):
            raise refused(Reason.IMAGE_PRELOAD, place=place, what=kind(status.st_mode))
        if status.st_size > preload_list.MAX_BYTES:
            raise refused(Reason.IMAGE_PRELOAD, place=place, what=f"{status.st_size} bytes")
        return preload_list.entries(inside.read_all(found, preload_list.MAX_BYTES))


def check_view(root: int, mounts: Sequence[Mount]) -> None:
    """`root`: descriptor of the process's own root; sources are the host's.

    Outside of places of our own, where strict mode's forwarders lie, an image's links are followed:
    what counts is what a program finds there.
    """
    for mount in mounts:
        ours = os.stat(mount.source)
        with (_at if _is_own(mount.destination) else _behind)(root, mount.destination) as found:
            if found is None:
                problem = "it is not there"
            else:
                there = os.fstat(found)
                if _file(there) == _file(ours):
                    continue
                problem = f"{kind(there.st_mode)} of {there.st_size} bytes"
        raise refused(Reason.VIEW_DIFFERS, path=mount.destination, problem=problem)


def check_capabilities(
    config: bundle.Config, process: Path, allowed: AbstractSet[str] = frozenset()
) -> None:
    """Raise Refused where a program in the container could take a limit away."""
    name = _loosening(config, process, allowed)
    if name:
        raise refused(Reason.CAPABILITY, name=name, does=bundle.LOOSENING[name])


def _loosening(config: bundle.Config, process: Path, allowed: AbstractSet[str]) -> str:
    host_pid = _file(os.stat(process / "ns/pid")) == _file(os.stat("/proc/self/ns/pid"))
    return bundle.loosening(config.capabilities, host_pid, allowed)


def check_volumes(process: Path, ours: AbstractSet[str], kept: Kept) -> None:
    """Raise Refused where a mount of the process shows the host's limits, beside `ours`."""
    point = mountinfo.shown(_mounts(process), ours, _limits(kept))
    if point:
        raise refused(Reason.HOST_VOLUME, mount=point, source="limits", place=str(kept.run_dir))


def _limits(kept: Kept) -> mountinfo.Limits:
    here = _mounts(Path("/proc/self"))
    places = (kept.run_dir, kept.store_dir, kept.nri_socket)
    return mountinfo.Limits(*(mountinfo.place_of(here, os.path.realpath(each)) for each in places))


def _mounts(process: Path) -> Sequence[mountinfo.Line]:
    return list(mountinfo.parse((process / "mountinfo").read_text(errors="surrogateescape")))


def _runs(process: Path) -> File:
    return _file(os.stat(process / "exe"))


def _file(status: os.stat_result) -> File:
    return status.st_dev, status.st_ino


def _is_own(destination: str) -> bool:
    own = (*names.CONTAINER_PRELOADS, names.CONTAINER_DIR)
    return destination in own or destination.startswith(f"{names.CONTAINER_DIR}/")


@contextmanager
def _behind(root: int, path: str) -> Iterator[int | None]:
    """As `_at`, but with links followed."""
    with ExitStack() as stack:
        try:
            found = stack.enter_context(inside.found(root, path))
        except FileNotFoundError:
            found = None
        yield found


@contextmanager
def _directory(path: Path) -> Iterator[int]:
    # Without O_NOFOLLOW: /proc/PID/root is a link, to follow; the other path is the runtime's own.
    descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _at(root: int, path: str) -> Iterator[int | None]:
    """A descriptor of `path` itself under `root`, for looking; None if it is not there.

    A link on the way refuses; where the path ends in one, the descriptor is the link's.
    """
    *parents, name = path.strip("/").split("/")
    current = os.dup(root)
    try:
        for depth, part in enumerate([*parents, name]):
            last = depth == len(parents)
            try:
                below = os.open(part, _LOOK if last else _DIRECTORY, dir_fd=current)
            except FileNotFoundError:
                yield None
                return
            except NotADirectoryError as error:
                what = kind(os.stat(part, dir_fd=current, follow_symlinks=False).st_mode)
                place = "/" + "/".join(parents[: depth + 1])
                raise refused(Reason.IMAGE_PATH, what=what, path=place) from error
            os.close(current)
            current = below
        yield current
    finally:
        os.close(current)
