"""The library on this host as the agent uses it: `STORE/SHA256/libvgpu.so`, and the forwarders.

New containers mount the release that the distributor made the current one, if it fits this machine
and this agent's contract, else the agent's own. Containers map a release as long as they run. The
agent removes a release that no container mounts, that is not the current one, and that is not an
agent's own: each agent holds a lock on its own files.
Blocks: run it in a worker thread.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from contract import forwarder, library_file, names
from nri_plugin.host import releases
from nri_plugin.policy.refusals import StoreError

_HASH: Final = re.compile("[0-9a-f]{64}").fullmatch
_HASH_CHARS: Final = 64


class Source(StrEnum):
    """Which component published the library; a metric's label."""

    DISTRIBUTOR = "distributor"
    AGENT = "agent"


@dataclass(frozen=True, slots=True)
class Chosen:
    """Library for new containers. problem: why it is not the current release, if there is one."""

    path: Path
    source: Source
    problem: str = ""


class Store:
    """Publishes `library` on demand, so that a file installed late needs no restart."""

    def __init__(self, directory: Path, library: Path) -> None:
        self._directory = directory
        self._library = library
        self._own: Path | None = None
        self._forwarders: Mapping[str, Path] = {}
        self._held: dict[Path, int] = {}
        self._judged: tuple[object, str] = (None, "")

    def choose(self) -> Chosen:
        """Return the library for new containers. Raises StoreError if there is none."""
        try:
            current = current_name(self._directory)
            if current is not None:
                return Chosen(self._fitting(current), Source.DISTRIBUTOR)
            problem = ""
        except StoreError as error:
            problem = str(error)
        return Chosen(self.own(), Source.AGENT, problem)

    def own(self) -> Path:
        """Publish this agent's own release; the first one, as long as the agent runs."""
        if self._own is None or not self._own.is_file():
            self._own = releases.publish(read(self._library), names.FILE_LIBRARY, self._directory)
            self._hold(self._own)
        return self._own

    def forwarders(self) -> Mapping[str, Path]:
        """Return forwarders by soname, published like the library. Raises StoreError."""
        present = self._forwarders.values()
        if not present or not all(path.is_file() for path in present):
            template = self._library.with_name(forwarder.TEMPLATE)
            self._forwarders = publish_forwarders(template, self._directory)
            for path in self._forwarders.values():
                self._hold(path)
        return self._forwarders

    def collect(self, mounted: Callable[[], Collection[str] | None]) -> Sequence[str]:
        """Remove the releases that nothing uses; return their names. A release that cannot be
        removed is retried at the next call.

        mounted: what containers mount, by path; None: it is not known. Called only if needed.
        """
        try:
            if not self._unused(()):
                return ()
            sources = mounted()
            if sources is None:
                return ()
            in_use = {Path(source).parent.name for source in sources}
            # The distributor holds the lock between a release and its name in `current`.
            with releases.locked(self._directory, wait_s=0):
                return [each.name for each in self._unused(in_use) if _remove(each)]
        except (OSError, StoreError):
            return ()

    def _fitting(self, name: str) -> Path:
        """Return the path of the current release. Raises StoreError if it cannot be mounted."""
        path = self._directory / name / names.FILE_LIBRARY
        try:
            found = path.stat()
            state = (name, found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns)
            if self._judged[0] != state:
                self._judged = (state, _misfit(path.read_bytes(), name))
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}") from error
        if self._judged[1]:
            raise StoreError(f"{path}: {self._judged[1]}")
        return path

    def _hold(self, path: Path) -> None:
        """Lock an own file against removal by another agent, until this process ends."""
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            earlier, self._held[path] = self._held.get(path), descriptor
            if earlier is not None:
                os.close(earlier)
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def _unused(self, in_use: Collection[str]) -> Sequence[Path]:
        kept = {*in_use, *(path.parent.name for path in self._held)}
        with suppress(StoreError):
            kept.add(current_name(self._directory) or "")
        there = sorted(entry for entry in self._directory.iterdir() if _HASH(entry.name))
        return [each for each in there if each.name not in kept and not _is_held(each)]


def current_name(store: Path) -> str | None:
    """Return the current release's SHA-256; None: no distributor chose one. Raises StoreError."""
    path = store / names.FILE_CURRENT
    try:
        with path.open("rb") as file:
            text = file.read(_HASH_CHARS + 2).decode("ascii", "replace").rstrip("\n")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    if not _HASH(text):
        raise StoreError(f"{path}: invalid value {text!r}: must be a SHA-256, in hexadecimal")
    return text


def publish_forwarders(template: Path, directory: Path) -> Mapping[str, Path]:
    """Fill in the template for each driver library, with the paths in containers."""
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
        raise StoreError(f"{library}: {error.strerror}") from error
    if not data.startswith(b"\x7fELF"):
        raise StoreError(f"{library}: not a shared library")
    return data


def _misfit(data: bytes, name: str) -> str:
    if hashlib.sha256(data).hexdigest() != name:
        return "its content has another SHA-256 than its directory's name"
    try:
        library_file.check(data, os.uname().machine)
    except library_file.LibraryFileError as error:
        return f"invalid value: {error}"
    return ""


def _is_held(release: Path) -> bool:
    """Whether an agent holds a lock on one of the files."""
    for file in release.iterdir():
        with suppress(FileNotFoundError):
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            finally:
                os.close(descriptor)
    return False


def _remove(release: Path) -> bool:
    with suppress(OSError):
        for file in release.iterdir():
            file.unlink()
        release.rmdir()
        return True
    return False
