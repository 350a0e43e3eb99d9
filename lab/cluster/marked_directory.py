"""A directory that may be removed: it has our marker, and nothing unknown in it.

Contains the marker, and the exact names of what may be in the directory beside it. A user's own
directory that is named by mistake is refused and keeps its content (directory.py checks first).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_MARKER: Final = ".gpuslice-cluster"
_MARKER_TEXT: Final = "made by make cluster, and removed by make cluster-down\n"
_NAMES_SHOWN: Final = 3


def processes(mark: str, directory: Path) -> Iterator[int]:
    """Numbers of the processes whose variable `mark` is that directory."""
    wanted = f"{mark}={directory}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has exited
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)


class DirectoryError(RuntimeError):
    """The directory cannot be used, or cannot be cleared; the text says why."""


@dataclass(frozen=True, slots=True)
class Marked:
    """files, directories: exact names of its known content; links are never known."""

    path: Path
    files: Collection[str]
    directories: re.Pattern[str]

    def make(self) -> None:
        try:
            self.path.mkdir(mode=0o700)
        except FileExistsError:
            pass
        except OSError as error:
            raise DirectoryError(f"{self.path} cannot be made: {error.strerror}") from error

    def exists(self) -> bool:
        return os.path.lexists(self.path)

    def opened(self) -> int:
        """Another user's directory in /tmp could be changed at any time: it must be owned by us."""
        status = self.path.lstat()
        ours = status.st_uid == os.geteuid() and not status.st_mode & 0o077
        if not (stat.S_ISDIR(status.st_mode) and ours):
            raise DirectoryError(f"{self.path} is not a directory of ours with mode 0700")
        return os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)

    def check(self) -> None:
        """Its content is removed with the cluster, so none of it may be unknown."""
        if not self.exists():
            return
        inside = {path.name for path in self.path.iterdir()}
        if inside - {_MARKER} and not self.is_marked():
            raise DirectoryError(
                f"--at: invalid value {self.path}: must be empty or a cluster's directory: it has"
                f" {_some(inside)}"
            )
        if foreign := inside - {_MARKER, *(path.name for path in self.known())}:
            raise DirectoryError(
                f"--at: invalid value {self.path}: must have only a cluster's files; move away"
                f" {_some(foreign)}"
            )

    def is_marked(self) -> bool:
        marker = self.path / _MARKER
        try:
            return not marker.is_symlink() and marker.read_text() == _MARKER_TEXT
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, UnicodeDecodeError):
            return False

    def known(self) -> list[Path]:
        """Content that a cluster has made, by exact names, beside the marker."""
        found = []
        for entry in os.scandir(self.path):
            directory = self.directories.fullmatch(entry.name)
            is_one = entry.is_dir(follow_symlinks=False) and directory
            if is_one or (entry.is_file(follow_symlinks=False) and entry.name in self.files):
                found.append(Path(entry.path))
        return found

    def mark(self) -> None:
        """Other processes may read meanwhile, so an existing marker is not rewritten."""
        if not self.is_marked():
            (self.path / _MARKER).write_text(_MARKER_TEXT)

    def remove(self) -> None:
        """Remove the directory and its known content, of which no process runs any more. Raises
        DirectoryError if something stays."""
        self.empty()
        try:
            if self.is_marked():
                (self.path / _MARKER).unlink()
            self.path.rmdir()
        except FileNotFoundError:
            pass
        except OSError as error:
            raise DirectoryError(f"{self.path} cannot be removed: {error.strerror}") from error

    def empty(self) -> None:
        """Remove its known content. Raises DirectoryError if something stays."""
        if not self.is_marked():
            return
        for path in self.known():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        if left := [path.name for path in self.known()]:
            raise DirectoryError(f"{', '.join(left)} in {self.path} cannot be removed")


def one_spelling(directory: Path) -> Path:
    """The canonical form of the directory's path. Its last component may be a link, which is
    refused."""
    try:
        named = directory.name not in ("", "..")
        return directory.parent.resolve() / directory.name if named else directory.resolve()
    except (OSError, RuntimeError) as error:  # the latter for a cycle of links
        raise DirectoryError(f"{directory}: {error}") from error


def _some(names: Iterable[str]) -> str:
    shown = sorted(names)
    return ", ".join(map(repr, shown[:_NAMES_SHOWN])) + (", ..." if shown[_NAMES_SHOWN:] else "")
