"""Changes files of the host so that a kill at any moment can be repaired.

The journal beside the files is written first, with their earlier content. While it says `changing`
the next run restores them byte for byte. It stays as `done`, from which the change can be undone,
or as `failed`: containerd is not restarted again for a configuration that did not work. One process
at a time holds the lock of the directory.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

JOURNAL: Final = ".gpuslice-enable-nri.json"
_FILES: Final = ("before", "after")

Files = Mapping[Path, bytes | None]
"""Content by path; None: there is no such file."""


class BusyError(Exception):
    """Another process changes the same files."""


class State(StrEnum):
    """State of the journal's change: under way, complete, or rolled back for `reason`."""

    CHANGING = "changing"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Record:
    """A change of files. directories: those that it makes. key: identifies the configuration and
    the containerd to which it was applied."""

    state: State
    before: Files
    after: Files
    directories: Sequence[Path] = ()
    key: str = ""
    reason: str = ""

    def apply(self) -> None:
        for path, data in self.after.items():
            replace_file(path, data)

    def revert(self) -> None:
        """Restore each file that still is as the change left it; an operator's edit stays."""
        for path, data in self.before.items():
            if read(path) == self.after[path]:
                replace_file(path, data)
            path.with_name(_partial(path)).unlink(missing_ok=True)
        self.remove_directories()

    def remove_directories(self) -> None:
        for directory in self.directories:
            with contextlib.suppress(OSError):  # the journal or an operator's file is there
                directory.rmdir()


class Journal:
    """In the directory of containerd's main file, as seen here."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / JOURNAL

    def read(self) -> Record | None:
        data = read(self.file)
        if data is None:
            return None
        document = json.loads(data)
        before, after = (
            {Path(path): _decoded(text) for path, text in document[of].items()} for of in _FILES
        )
        directories = tuple(Path(path) for path in document["directories"])
        return Record(
            State(document["state"]),
            before,
            after,
            directories,
            document["key"],
            document["reason"],
        )

    def write(self, record: Record) -> None:
        text = {of: {str(p): _encoded(d) for p, d in getattr(record, of).items()} for of in _FILES}
        made = [str(directory) for directory in record.directories]
        plain = {"state": record.state, "key": record.key, "reason": record.reason}
        replace_file(self.file, json.dumps({**plain, "directories": made, **text}).encode())

    def clear(self) -> None:
        replace_file(self.file, None)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock of the directory, or of its parent before it is made. It leaves no file. Raises
    BusyError and OSError."""
    there = directory if directory.is_dir() else directory.parent
    descriptor = os.open(there, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise BusyError(f"{directory}: another process turns NRI on: wait until it ends") from error
    try:
        yield
    finally:
        os.close(descriptor)


def read(path: Path) -> bytes | None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return path.read_bytes()
    return None


def replace_file(path: Path, data: bytes | None) -> None:
    """Replace the file by rename, with the owner and mode of the earlier one, and sync both. None:
    remove it."""
    if data is None:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
            _sync(path.parent)
        return
    path.parent.mkdir(mode=0o755, exist_ok=True)
    try:
        earlier = path.stat()
    except FileNotFoundError:
        earlier = None
    partial = path.with_name(_partial(path))
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fchmod(file.fileno(), stat.S_IMODE(earlier.st_mode) if earlier else 0o644)
        if earlier:
            os.fchown(file.fileno(), earlier.st_uid, earlier.st_gid)
        os.fsync(file.fileno())
    partial.rename(path)
    _sync(path.parent)


def new_directories(files: Files) -> Sequence[Path]:
    return tuple(dict.fromkeys(p.parent for p in files if not p.parent.is_dir()))


def key_of(files: Files, version: str) -> str:
    texts = [f"{path}:{_encoded(data)}" for path, data in sorted(files.items())]
    return hashlib.sha256("\n".join((version, *texts)).encode()).hexdigest()


def _partial(path: Path) -> str:
    """No drop-in's name: containerd imports *.toml."""
    return f".{path.name}.gpuslice"


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _encoded(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
