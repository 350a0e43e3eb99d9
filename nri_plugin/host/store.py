"""The library on this host: `STORE/SHA256/libvgpu.so`, and the forwarders for strict mode.

A published file never changes, because containers map it as long as they run. A file under its own
hash is complete or absent (written to a temporary file, synced, linked). An upgrade adds a
directory; a directory that no container uses any more is removed.
Blocks: run it in a worker thread.
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
from nri_plugin.policy.refusals import StoreError

_HASH: Final = re.compile("[0-9a-f]{64}").fullmatch


class Store:
    """Publishes `library` on demand, so that a file installed late needs no restart."""

    def __init__(self, directory: Path, library: Path) -> None:
        self._directory = directory
        self._library = library
        self._published: Path | None = None
        self._forwarders: Mapping[str, Path] = {}

    def current(self) -> Path:
        """Return the published file; raises StoreError if there is nothing to publish.

        The release is the one that this agent first published; all its later containers get the
        same.
        """
        if self._published is None or not self._published.is_file():
            self._published = publish(self._library, self._directory)
        return self._published

    def forwarders(self) -> Mapping[str, Path]:
        """Return forwarders by soname, published like the library. Raises StoreError."""
        present = self._forwarders.values()
        if not present or not all(path.is_file() for path in present):
            template = self._library.with_name(forwarder.TEMPLATE)
            self._forwarders = publish_forwarders(template, self._directory)
        return self._forwarders

    def collect(self, in_use: Container[str]) -> Sequence[str]:
        """Remove the directories of releases that neither a container of `in_use` nor this agent
        uses; return their names. A directory that cannot be removed is retried at the next call."""
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
    """Copy `library` into the store unless it exists there; return the store's path."""
    return _publish(read(library), names.FILE_LIBRARY, directory)


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
    """Write a file with this content into the store; return its path."""
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
