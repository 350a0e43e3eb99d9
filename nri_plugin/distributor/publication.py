"""Publishes one library on this host, and restores what other programs change of it.

    STORE/SHA256/libvgpu.so   a release; the agent mounts it into containers
    STORE/current             the SHA-256 of the release that new containers mount
    STORE/../libvgpu.so       a copy for Koordinator and HAMi, which gpuslice's containers never map
    STORE/.lock               held while any of these is written; names the distributor in charge

Each file is complete or absent at each moment, and `current` is written after its release. The
distributor that started last is in charge: it writes its name into the lock's file, and an earlier
one, which finds another name there, writes nothing from then on.
HAMi's library cannot read gpuslice's grants. It is only copied, and no release is current.
All methods block.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

from contract import library_file, names
from contract.library_file import LibraryFileError
from nri_plugin.host import releases
from nri_plugin.policy.refusals import StoreError

_NAME_BYTES: Final = 200
"""Size of the lock's file: one block, which exists before the name replaces the earlier one."""
_CURRENT_MODE: Final = 0o644


class Origin(StrEnum):
    """Which project built the library: the values of --source."""

    GPUSLICE = "gpuslice"
    HAMI = "hami"


class Superseded(Exception):
    """Another distributor started later; the text names it."""


def read(path: Path, origin: Origin) -> bytes:
    """Return the library at the path. Raises LibraryFileError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LibraryFileError(f"must be a readable file: {error.strerror}") from error
    library_file.check(data, os.uname().machine, contract=None)
    if origin is Origin.GPUSLICE and library_file.parse(data).contract is None:
        raise LibraryFileError("must be gpuslice's library; for HAMi's set --source hami")
    return data


class Publication:
    """identity: of this process, for operators; differs from that of any other distributor."""

    def __init__(self, data: bytes, origin: Origin, store: Path, identity: str = "") -> None:
        self._data = data
        self._origin = origin
        self._store = store
        self._name = identity.encode("ascii", "replace")[:_NAME_BYTES].ljust(_NAME_BYTES)
        self._release = releases.place(data, names.FILE_LIBRARY, store)
        self._current = store / names.FILE_CURRENT
        self._copy = store.parent / names.FILE_LIBRARY
        self._in_charge = False

    @property
    def sha256(self) -> str:
        return self._release.parent.name

    @property
    def directories(self) -> Sequence[Path]:
        """Return the directories of the published files."""
        ours = self._origin is Origin.GPUSLICE
        return (self._store.parent, self._store, *([self._release.parent] if ours else []))

    def lacks(self) -> Sequence[str]:
        """Return which of the files are not as published; empty: all verify. Writes nothing."""
        found = []
        if self._origin is Origin.GPUSLICE:
            if not releases.holds(self._release, self._data):
                found.append(f"{self._release}: must have SHA-256 {self.sha256} and mode 755")
            if self._chosen() != self.sha256:
                found.append(f"{self._current}: must be {self.sha256}, is {self._chosen() or None}")
        elif self._chosen() is not None:
            found.append(f"{self._current}: must not exist with --source hami")
        if not releases.holds(self._copy, self._data):
            found.append(f"{self._copy}: must be the same file as {self._release.name} published")
        return found

    def restore(self) -> Sequence[str]:
        """Write what lacks; return what that was. Raises StoreError and Superseded."""
        with releases.locked(self._store) as lock:
            self._take_charge(lock)
            lacking = self.lacks()
            if not lacking:
                return ()
            if self._origin is Origin.GPUSLICE:
                if not releases.holds(self._release, self._data):
                    releases.replace(self._release, self._data)
                if self._chosen() != self.sha256:
                    releases.replace(self._current, f"{self.sha256}\n".encode(), _CURRENT_MODE)
            else:
                self._withdraw()
            if not releases.holds(self._copy, self._data):
                releases.replace(self._copy, self._data)
        return lacking

    def _take_charge(self, lock: int) -> None:
        try:
            found = os.pread(lock, _NAME_BYTES, 0)
            if self._in_charge and found.strip() and found != self._name:
                raise Superseded(found.decode("ascii", "replace").strip())
            if found != self._name:
                os.pwrite(lock, self._name, 0)
        except OSError as error:
            raise StoreError(f"{self._store / releases.LOCK}: {error.strerror}") from error
        self._in_charge = True

    def _chosen(self) -> str | None:
        """Return the content of `current`; None: there is none."""
        try:
            return self._current.read_text("ascii", "replace").strip()
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"unreadable: {error.strerror}"

    def _withdraw(self) -> None:
        try:
            self._current.unlink(missing_ok=True)
            releases.sync(self._store)
        except OSError as error:
            raise StoreError(f"{self._current}: {error.strerror}") from error
