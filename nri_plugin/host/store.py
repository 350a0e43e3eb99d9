"""The store: `STORE/SHA256/libvgpu.so` and forwarders on this host, which containers mount.

The store is a separate tmpfs below the run directory. It allows execution even if /run does not,
and stays when the agent restarts or is replaced. Earlier releases stay beside a new one, because
containers map them as long as they run. The agent removes a release if no container mounts it and
no agent holds a lock on it. Each agent locks the release that new containers get. Blocks.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpuslice.contract import forwarder, names
from nri_plugin.host import releases, tmpfs
from nri_plugin.host.descriptors import opened
from nri_plugin.policy.refusals import Refused, StoreError, raise_shortage

_BYTES: Final = 64 << 20
"""Size limit of the store. The files count towards the agent's memory limit. A release and the
hooks' program take 9 MiB."""
_INODES: Final = 1024
_SOURCE: Final = f"{names.PLUGIN_NAME}-store"


def keep_mounted(directory: Path) -> None:
    """Mount the store's tmpfs, unless an earlier agent did. Raises StoreError."""
    try:
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with opened(directory.parent, os.O_RDONLY | os.O_DIRECTORY) as parent:
            fcntl.flock(parent, fcntl.LOCK_EX)  # another agent may be mounting the store
            directory.mkdir(exist_ok=True)
            if not os.path.ismount(directory):
                tmpfs.mount(directory, _BYTES, _INODES, _SOURCE)
    except OSError as error:
        raise StoreError(f"{error.filename or directory}: {error.strerror}") from error


@dataclass(eq=False)
class Store:
    """Publishes `library` when it is first needed. So the library may be installed after the agent
    has started. prepare: called with the store's directory before anything is published."""

    root: Path
    library: Path
    prepare: Callable[[Path], None] = keep_mounted
    _own: Path | None = None
    _forwarders: Mapping[str, Path] = field(default_factory=dict)
    _held: dict[Path, int] = field(default_factory=dict)

    def own(self) -> Path:
        """Return the library for new containers: the release that this agent published first, as
        long as the agent runs. Raises StoreError if there is no library."""
        if self._own is None or not self._own.is_file():
            self.prepare(self.root)
            self._own = releases.publish(read(self.library), names.FILE_LIBRARY, self.root)
            self._hold(self._own)
        return self._own

    def directory(self) -> Path:
        """Return the mounted store's directory, in which a caller may put another program. Raises
        StoreError if it cannot be mounted."""
        self.prepare(self.root)
        return self.root

    def forwarders(self) -> Mapping[str, Path]:
        """Return the published forwarders by soname. Raises StoreError."""
        present = self._forwarders.values()
        if not present or not all(path.is_file() for path in present):
            self.prepare(self.root)
            template = self.library.with_name(forwarder.TEMPLATE)
            self._forwarders = publish_forwarders(template, self.root)
            for path in self._forwarders.values():
                self._hold(path)
        return self._forwarders

    def collect(self, mounted: Callable[[], Collection[str] | None]) -> Sequence[str]:
        """Remove the unused releases; return their names. The next call retries a release that
        could not be removed.

        mounted: returns the paths that containers mount, or None if they are not known. It is only
        called if there are releases that no agent locks.
        """
        try:
            if not self._unused(()):
                return ()
            sources = mounted()
            if sources is None:
                return ()
            in_use = {Path(source).parent.name for source in sources}
            with releases.locked(self.root, wait_s=0):
                return [each.name for each in self._unused(in_use) if _remove(each)]
        except (OSError, StoreError, Refused):
            return ()

    def _hold(self, path: Path) -> None:
        """Lock a published file, until this process ends, so that no other agent removes it."""
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            earlier, self._held[path] = self._held.get(path), descriptor
            if earlier is not None:
                os.close(earlier)
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def _unused(self, in_use: Collection[str]) -> Sequence[Path]:
        kept = {*in_use, *(path.parent.name for path in self._held)}
        there = sorted(entry for entry in self.root.iterdir() if releases.is_release(entry.name))
        return [each for each in there if each.name not in kept and not _is_held(each)]


def publish_forwarders(template: Path, directory: Path) -> Mapping[str, Path]:
    """Publish a forwarder for each of the driver's libraries. template: the template's path."""
    data = read(template)
    published = {}
    for soname in names.DRIVER_SONAMES:
        driver = f"{names.CONTAINER_DRIVER_DIR}/{soname}"
        try:
            filled = forwarder.fill(data, soname, names.CONTAINER_LIBRARY, driver)
        except forwarder.ForwarderError as error:
            raise StoreError(f"{template}: {error}") from error
        published[soname] = releases.publish(filled, soname, directory)
    return published


def read(library: Path) -> bytes:
    try:
        data = library.read_bytes()
    except OSError as error:
        raise_shortage(error)
        raise StoreError(f"{library}: {error.strerror}") from error
    if not data.startswith(b"\x7fELF"):
        raise StoreError(f"{library}: not a shared library")
    return data


def _is_held(release: Path) -> bool:
    """Return whether an agent holds a lock on one of the release's files."""
    for file in release.iterdir():
        with suppress(FileNotFoundError), opened(file, os.O_RDONLY | os.O_NOFOLLOW) as descriptor:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    return False


def _remove(release: Path) -> bool:
    with suppress(OSError):
        releases.remove(release)
        return True
    return False
