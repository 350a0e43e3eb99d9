"""The directory of a cluster on this machine: its state, its locks, its removal.

Only root may enter it. It holds a marker file and files of known names only. So a user's own
directory that is named by mistake is refused and keeps its content. This module also removes what a
killed owner left. Each process of a cluster has the directory's name in its environment. Each
cgroup of a cluster is named after a directory below it.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lab.cluster import health
from lab.node import cgroups, network
from lab.node.namespace import PARENT_CHARS_MAX, PREFIX

DIRECTORY: Final = "/tmp/gpuslice"
"""The default directory."""
MARK: Final = "GPUSLICE_CLUSTER_AT"
"""The environment variable of all processes of a cluster. Its value is the cluster's directory."""
_MARKER: Final = ".gpuslice-cluster"
_MARKER_TEXT: Final = "made by make cluster, and removed by make cluster-down\n"
_LOG, _OWNER, _STATE, _KUBECONFIG = "cluster.log", "owner", "state.json", "kubeconfig"
_FILES: Final = (_LOG, _OWNER, _STATE, f"{_STATE}.new", _KUBECONFIG, f"{_KUBECONFIG}.lock")
"""All files that may be beside the marker and labs' directories. kubectl makes the `.lock` file."""
_LAB: Final = re.compile(re.escape(PREFIX) + "[a-z0-9_]{8}")
_NAMES_SHOWN: Final = 3
_CLEAR_S: Final = 40.0


class DirectoryError(RuntimeError):
    """The directory cannot be used or cleared. The text has the reason."""


def add_option(parser: argparse.ArgumentParser, default: str = DIRECTORY) -> None:
    """Add the option --at, which names the directory."""
    about = f"the cluster's directory, by default {default}"
    parser.add_argument("--at", type=Path, default=Path(default), metavar="DIR", help=about)


def processes(directory: Path) -> Iterator[int]:
    """Yield the process IDs of the cluster in that directory."""
    wanted = f"{MARK}={directory}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # the process has exited
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The observed state of a cluster. owner: its owner's process ID, or None. The cluster runs if
    it has an owner, is `ready` and has no problems."""

    exists: bool
    owner: int | None
    ready: bool
    problems: tuple[str, ...]
    state: Mapping[str, Any]

    @property
    def is_healthy(self) -> bool:
        return self.ready and self.owner is not None and not self.problems


class ClusterDirectory:
    """A directory that holds a cluster or nothing. Methods raise DirectoryError."""

    def __init__(self, directory: Path) -> None:
        self.path = _one_spelling(directory)
        length = len(os.fsencode(self.path))
        if length > PARENT_CHARS_MAX:
            most = f"unix sockets below it must fit 107, so at most {PARENT_CHARS_MAX}"
            raise DirectoryError(f"{self.path}: {length} bytes; {most}")
        if not (str(self.path).isascii() and str(self.path).isprintable()):
            raise DirectoryError(f"{str(self.path)!r}: kubelet's paths must be printable ASCII")
        self.kubeconfig = self.path / _KUBECONFIG
        self.log = self.path / _LOG
        self._state = self.path / _STATE
        self._owner = self.path / _OWNER

    @property
    def advice(self) -> str:
        """The argument of `make cluster` that selects this directory, quoted for a shell."""
        named = str(self.path)
        return "" if named == DIRECTORY else f" AT={shlex.quote(named)}"

    @contextmanager
    def changing(self, make: bool = True) -> Iterator[None]:
        """Hold the lock under which one process at a time starts or ends a cluster here. make:
        whether to make a missing directory. Raises DirectoryError, also for foreign content."""
        while True:
            if make:
                try:
                    self.path.mkdir(mode=0o700, exist_ok=True)
                except FileExistsError:  # the path is a file, which is refused below
                    pass
                except OSError as error:
                    raise DirectoryError(f"{self.path} cannot be made: {error.strerror}") from error
            elif not os.path.lexists(self.path):
                yield
                return
            try:
                descriptor = self._opened()
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if self._is(descriptor):  # the directory may have been removed
                    self._check()
                    # An existing marker is not rewritten, because other processes may be reading
                    # it.
                    if make and not self._is_marked():
                        (self.path / _MARKER).write_text(_MARKER_TEXT)
                    yield
                    return
            finally:
                os.close(descriptor)

    def own(self) -> None:
        """Make this process the cluster's owner until it exits. Raises DirectoryError."""
        descriptor = os.open(self._owner, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise DirectoryError(f"{self.path} has an owner already") from error
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())

    def write(self, state: Mapping[str, Any]) -> None:
        """Write the state that `read_status` reads. Only the owner calls this."""
        fresh = self.path / f"{_STATE}.new"
        fresh.write_text(json.dumps(state))
        fresh.rename(self._state)

    def _opened(self) -> int:
        """Open the directory. Refuse another user's, which could change at any time."""
        status = self.path.lstat()
        ours = status.st_uid == os.geteuid() and not status.st_mode & 0o077
        if not (stat.S_ISDIR(status.st_mode) and ours):
            raise DirectoryError(
                f"{self.path}: must be a directory of this user with mode 0700; remove it, or name"
                " another one by AT=DIR"
            )
        return os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)

    def _is(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self.path.lstat())
        except FileNotFoundError:
            return False

    def _is_marked(self) -> bool:
        marker = self.path / _MARKER
        try:
            return not marker.is_symlink() and marker.read_text() == _MARKER_TEXT
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, UnicodeDecodeError):
            return False

    def _known(self) -> list[Path]:
        """Return what a cluster has made here, by exact names. Ignores links and the marker."""
        found = []
        for entry in os.scandir(self.path):
            is_lab = entry.is_dir(follow_symlinks=False) and _LAB.fullmatch(entry.name)
            if is_lab or (entry.is_file(follow_symlinks=False) and entry.name in _FILES):
                found.append(Path(entry.path))
        return found

    def _check(self) -> None:
        """Raise DirectoryError for unknown content, because `clear` must not remove it."""
        if not os.path.lexists(self.path):
            return
        inside = {path.name for path in self.path.iterdir()} - {_MARKER}
        invalid = f"--at: invalid value {self.path}: must"
        if inside and not self._is_marked():
            found = _some(inside)
            raise DirectoryError(f"{invalid} be empty or a cluster's directory: it has {found}")
        if foreign := inside - {path.name for path in self._known()}:
            away = _some(foreign)
            raise DirectoryError(f"{invalid} have only a cluster's files; move away {away}")

    def read_status(self) -> ClusterStatus:
        """Return the observed state. Raises DirectoryError if access is denied."""
        try:
            exists = self._is_marked() and any(self._known())
            owner, state = self.owner(), self._read()
        except PermissionError as error:
            raise DirectoryError(f"only root may look into {self.path}") from error
        except FileNotFoundError:  # another process has removed the directory
            exists, owner, state = False, None, {}
        if not exists:
            return ClusterStatus(False, None, False, (), {})
        ready = bool(state.get("ready"))
        problems = tuple(health.problems(state)) if ready and owner is not None else ()
        if owner is None:
            problems = ("the process that holds it has ended",)
        return ClusterStatus(True, owner, ready, problems, state)

    def owner(self) -> int | None:
        """Return the process ID of the cluster's owner, or None."""
        try:
            descriptor = os.open(self._owner, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(os.read(descriptor, 20) or b"0") or None
        else:
            return None
        finally:
            os.close(descriptor)

    def _read(self) -> Mapping[str, Any]:
        try:
            return dict(json.loads(self._state.read_text()))
        except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
            return {}

    def clear(self) -> None:
        """Remove the directory and all that is left of a cluster in any state. Raises
        DirectoryError if something cannot be removed."""
        self.empty()
        self.remove()

    def empty(self) -> None:
        """Remove all that is left of a cluster. The directory stays, for another cluster."""
        self._check()
        owner, state = self.owner(), self._read()
        if owner is not None:
            self._end(owner)
        # The programs and the namespaces end with the owner, but a moment later.
        deadline = time.monotonic() + _CLEAR_S
        patience = time.monotonic() + _CLEAR_S / 2
        while left := self._processes():
            if time.monotonic() > deadline:
                raise DirectoryError(f"processes {left} do not end")
            if time.monotonic() > patience or owner is None:
                for pid in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
        for each in self.path.glob(f"{PREFIX}*"):
            if not cgroups.remove(each.name, deadline - time.monotonic()):
                raise DirectoryError(f"cgroups {each.name} are still in use")
        if interface := state.get("interface"):
            network.remove(str(interface))
        self._remove_known()

    def remove(self) -> None:
        """Remove the directory and its known content. Call this after the cluster's processes have
        ended. Raises DirectoryError."""
        self._remove_known()
        try:
            if self._is_marked():
                (self.path / _MARKER).unlink()
            self.path.rmdir()
        except FileNotFoundError:
            pass
        except OSError as error:
            raise DirectoryError(f"{self.path} cannot be removed: {error.strerror}") from error

    def _remove_known(self) -> None:
        if not self._is_marked():
            return
        for path in self._known():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        if left := [path.name for path in self._known()]:
            raise DirectoryError(f"{', '.join(left)} in {self.path} cannot be removed")

    def left(self, status: ClusterStatus) -> list[str]:
        """List what remains after the cluster's end. status: the cluster's last status."""
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        left = [
            *(f"process {pid}" for pid in self._processes()),
            *(f"mount {line.split()[1]}" for line in mounts if f"{self.path}/" in line),
            *([f"directory {self.path}"] if self.path.exists() else []),
        ]
        if lab := status.state.get("directory"):
            left += [f"cgroup {group}" for group in cgroups.named(Path(lab).name)]
        if (interface := status.state.get("interface")) and network.is_there(interface):
            left.append(f"interface {interface}")
        return left

    def _end(self, owner: int) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(owner, number)
                os.kill(owner, signal.SIGCONT)
            deadline = time.monotonic() + 60.0
            while self.owner() == owner and time.monotonic() < deadline:
                time.sleep(0.05)

    def _processes(self) -> list[int]:
        return [pid for pid in processes(self.path) if pid != os.getpid()]


def _one_spelling(directory: Path) -> Path:
    """Return the canonical path. Keep a link in its last component, to be refused later."""
    try:
        named = directory.name not in ("", "..")
        return directory.parent.resolve() / directory.name if named else directory.resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: a cycle of links
        raise DirectoryError(f"{directory}: {error}") from error


def _some(names: Iterable[str]) -> str:
    shown = sorted(names)
    return ", ".join(map(repr, shown[:_NAMES_SHOWN])) + (", ..." if shown[_NAMES_SHOWN:] else "")
