"""The library on this host: `STORE/SHA256/libvgpu.so`, published once and never changed; beside it,
for strict mode, the forwarders of the driver's libraries.

Containers map the store's file for their whole life. A file under its own hash is complete or
absent (written aside, synced, linked into place); an upgrade adds a directory beside the old ones,
and one that no container uses any more is removed.
Blocks: belongs in a worker thread.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Final

from contract import forwarder, names
from nri_plugin.errors import StoreError

_HASH: Final = re.compile("[0-9a-f]{64}").fullmatch


class Store:
    """Publishes `library` on demand, so that a file that comes late is found without a restart."""

    def __init__(self, directory: Path, library: Path) -> None:
        self._directory = directory
        self._library = library
        self._published: Path | None = None
        self._forwarders: Mapping[str, Path] = {}

    def current(self) -> Path:
        """The published file; raises StoreError where there is nothing to publish.

        The release is what lay in the library's place when this agent first published it: later
        containers of this agent get the same one.
        """
        if self._published is None or not self._published.is_file():
            self._published = publish(self._library, self._directory)
        return self._published

    def forwarders(self) -> Mapping[str, Path]:
        """By soname; published like the library, and as lasting. Raises StoreError."""
        present = self._forwarders.values()
        if not present or not all(path.is_file() for path in present):
            template = self._library.with_name(forwarder.TEMPLATE)
            self._forwarders = publish_forwarders(template, self._directory)
        return self._forwarders

    def collect(self, in_use: Container[str]) -> Sequence[str]:
        """Remove the directories of releases that neither a container of `in_use` nor this agent
        uses; returns their names. What cannot be removed stays, and is tried at the next call."""
        published = (self._published, *self._forwarders.values())
        ours = {path.parent.name for path in published if path is not None}
        removed = []
        try:
            there = sorted(entry for entry in self._directory.iterdir() if _HASH(entry.name))
        except OSError:
            return ()
        for directory in there:
            if directory.name not in in_use and directory.name not in ours:
                try:
                    for file in directory.iterdir():
                        file.unlink()
                    directory.rmdir()
                except OSError:
                    continue
                removed.append(directory.name)
        return removed


def publish(library: Path, directory: Path) -> Path:
    """Put a copy of `library` into the store, unless it is there; returns the store's path."""
    return _publish(read(library), names.FILE_LIBRARY, directory)


def publish_forwarders(template: Path, directory: Path) -> Mapping[str, Path]:
    """Fill the template in for each library of the driver, as containers see them."""
    data = read(template)
    published = {}
    for soname in names.DRIVER_SONAMES:
        driver = f"{names.CONTAINER_DRIVER_DIR}/{soname}"
        try:
            filled = forwarder.fill(data, soname, names.CONTAINER_LIBRARY, driver)
        except forwarder.ForwarderError as error:
            raise StoreError(f"{template}: {error}") from error
        published[soname] = _publish(filled, soname, directory)
    return published


def read(library: Path) -> bytes:
    try:
        data = library.read_bytes()
    except OSError as error:
        raise StoreError(f"{library}: {error.strerror}") from error
    if not data.startswith(b"\x7fELF"):
        raise StoreError(f"{library}: not a shared library")
    return data


def place(data: bytes, name: str, directory: Path) -> Path:
    """Where the store has a file of this content."""
    return directory / hashlib.sha256(data).hexdigest() / name


def _publish(data: bytes, name: str, directory: Path) -> Path:
    target = place(data, name, directory)
    try:
        if not _holds(target, data):
            _place(target, data)
    except OSError as error:
        raise StoreError(f"{error.filename or target}: {error.strerror}") from error
    return target


def _holds(target: Path, data: bytes) -> bool:
    try:
        present = target.read_bytes()
    except FileNotFoundError:
        return False
    if present != data:
        raise StoreError(f"{target} has been changed: remove it when no container uses it")
    return True


def _place(target: Path, data: bytes) -> None:
    target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".", delete=False) as file:
        try:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), 0o755)
            os.fsync(file.fileno())
            os.link(file.name, target)
        except FileExistsError:
            pass  # Another agent published the same bytes meanwhile.
        finally:
            os.unlink(file.name)
    descriptor = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
