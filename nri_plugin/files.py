"""The files of containers on this host: one small tmpfs per grant, under the run directory.

    RUN/KEY/           its own tmpfs, capped: no tenant fills another's, nor the host's /run
      preload          the line that /etc/ld.so.preload shows, and the image's own behind it
      preload-nix      the same for Nix' loader, which reads another file
      libvgpu.so       empty: the place where the store's file is mounted
      driver/SONAME    empty: where strict mode mounts the driver's real libraries
      region           writable by everybody inside; its blocks are there from the start, so that
                       no store into the mapping meets a full file system
      grant            written last: a directory with a valid grant is complete

Holds no policy. All calls block, and belong to one worker thread, which keeps them in order. Killed
at any moment it leaves at worst a directory that no container uses; sweep.py removes it.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from types import MappingProxyType
from typing import Final

from contract import grant_file, names, region_file
from nri_plugin import preload_list
from nri_plugin.errors import FilesError, Reason, Refused, refuse
from nri_plugin.logs import Line
from nri_plugin.model import Share

_LOG: Final = logging.getLogger(__name__)

_MS_NOSUID: Final = 2
_MS_NODEV: Final = 4
_MNT_DETACH: Final = 2
_UMOUNT_NOFOLLOW: Final = 8
_PAGE: Final = 4096
_SLACK_BYTES: Final = 16 * _PAGE
"""For the file system's own records; what a tenant could add to its region, and no more."""
_MAX_INODES: Final = 16
_MAX_STACKED: Final = 16
_NOTHING_KNOWN: Final[Mapping[str, int]] = MappingProxyType({})

_PRELOAD: Final = f"{names.CONTAINER_LIBRARY}\n".encode()

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.mount.argtypes = (
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_ulong,
    ctypes.c_char_p,
)
_LIBC.umount2.argtypes = (ctypes.c_char_p, ctypes.c_int)


class RunDirectory:
    """The run directory; `new_grant_id` is the only source of chance."""

    def __init__(self, root: Path, new_grant_id: Callable[[], int]) -> None:
        self._root = root
        self._new_grant_id = new_grant_id

    def prepare(
        self,
        key: str,
        shares: Sequence[Share],
        shared: bool,
        context_bytes: Mapping[str, int] = _NOTHING_KNOWN,
    ) -> None:
        """Make the files of `key`, or find them as they should be.

        shared: other containers may be using them already; then they stay as they are, and shares
        that differ from theirs are an error. context_bytes: what contexts take, by card, as far as
        it is known. Raises FilesError, and leaves nothing behind.
        """
        path = self._root / key
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            if shared and (present := _read_grant(path)) is not None:
                if _same(present, shares):
                    return
                raise FilesError(
                    "the pod's allocation is not the one that its running containers have"
                )
            _clear(path)
            path.mkdir(mode=0o755)
            try:
                self._fill(path, shares, context_bytes)
            except BaseException:
                _clear(path)
                raise
        except OSError as error:
            raise FilesError(f"{error.filename or path}: {error.strerror}") from error

    def add_preloads(self, key: str, preloads: Mapping[str, Sequence[bytes]]) -> None:
        """Put the image's own libraries behind ours, by the place of the preload file.

        In place, since the file is mounted, and before anything runs that reads it; again gives
        the same. Raises FilesError, and Refused where they are too many.
        """
        for place, entries in preloads.items():
            path = self._root / key / names.CONTAINER_PRELOADS[place]
            whole = preload_list.merged(_PRELOAD, entries)
            if len(whole) > preload_list.MAX_BYTES:
                raise Refused(
                    refuse(
                        Reason.IMAGE_PRELOAD_LONG,
                        place=place,
                        size=len(whole),
                        most=preload_list.MAX_BYTES,
                    )
                )
            try:
                with path.open("r+b", buffering=0) as file:
                    file.write(whole)
                    file.truncate()
            except OSError as error:
                raise FilesError(f"{path}: {error.strerror}") from error

    def remove(self, key: str) -> None:
        """Take the files of `key` away; nothing to do is fine. Containers keep what they mapped."""
        path = self._root / key
        try:
            _clear(path)
        except OSError as error:
            raise FilesError(f"{error.filename or path}: {error.strerror}") from error

    def grants(self, keys: Iterable[str]) -> Mapping[str, grant_file.Grant]:
        """The grants of those of `keys` that are complete directories."""
        found = {}
        for key in keys:
            try:
                grant = _read_grant(self._root / key)
            except OSError as error:
                _LOG.warning(Line("grant cannot be read", key=key, error=error))
                continue
            if grant is not None:
                found[key] = grant
        return found

    def keys(self) -> AbstractSet[str]:
        """Of every directory that is there; what begins with a dot is the agent's own."""
        try:
            return {name for name in os.listdir(self._root) if not name.startswith(".")}
        except FileNotFoundError:
            return frozenset()

    def _fill(self, path: Path, shares: Sequence[Share], context_bytes: Mapping[str, int]) -> None:
        grant_id = self._new_grant_id()
        region = region_file.fresh(len(shares), grant_id)
        grant = grant_file.fresh(grant_file.Grant(grant_id, _cards(shares, context_bytes)))
        preloads = names.CONTAINER_PRELOADS.values()
        pages = sum(
            -(-len(data) // _PAGE) for data in (region, grant, *(_PRELOAD for _ in preloads))
        )
        _mount_tmpfs(path, pages * _PAGE + _SLACK_BYTES)
        (path / names.DIR_DRIVER).mkdir(mode=0o755)
        for name, mode, data in (
            *((name, 0o444, _PRELOAD) for name in preloads),
            (names.FILE_LIBRARY, 0o444, b""),
            *((f"{names.DIR_DRIVER}/{soname}", 0o444, b"") for soname in names.DRIVER_SONAMES),
            (names.FILE_REGION, 0o666, region),
            (names.FILE_GRANT, 0o444, grant),
        ):
            _write(path / name, mode, data)


def _cards(shares: Sequence[Share], context_bytes: Mapping[str, int]) -> Sequence[grant_file.Card]:
    return tuple(
        grant_file.Card(
            share.uuid,
            share.memory_bytes,
            share.core_percent,
            share.minor,
            context_bytes=context_bytes.get(share.uuid, 0),
        )
        for share in shares
    )


def _read_grant(path: Path) -> grant_file.Grant | None:
    """The grant of a complete directory, or None; only this agent can write the file."""
    if not os.path.ismount(path):
        return None
    try:
        return grant_file.decode((path / names.FILE_GRANT).read_bytes())
    except FileNotFoundError:
        return None


def _same(grant: grant_file.Grant, shares: Sequence[Share]) -> bool:
    held = [(c.uuid, c.minor, c.limit_bytes, c.core_percent) for c in grant.cards]
    return held == [(s.uuid, s.minor, s.memory_bytes, s.core_percent) for s in shares]


def _write(path: Path, mode: int, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        os.fchmod(descriptor, mode)


def _clear(path: Path) -> None:
    """Unmount and remove `path`. Never deletes a file: ours lie on the tmpfs and go with it."""
    for _ in range(_MAX_STACKED):
        if not os.path.ismount(path):
            break
        _check(_LIBC.umount2(os.fsencode(path), _MNT_DETACH | _UMOUNT_NOFOLLOW), path)
    try:
        path.rmdir()
    except FileNotFoundError:
        return


def _mount_tmpfs(path: Path, size_bytes: int) -> None:
    options = f"mode=0755,size={size_bytes},nr_inodes={_MAX_INODES}".encode()
    target = os.fsencode(path)
    flags = _MS_NOSUID | _MS_NODEV
    _check(_LIBC.mount(names.PLUGIN_NAME.encode(), target, b"tmpfs", flags, options), path)


def _check(result: int, path: Path) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(path))
