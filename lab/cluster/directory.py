"""The directory of a cluster on this machine: its state, its locks, its removal.

Only root may enter it, and it may be removed (marked_directory.py). It has two locks (one for
changing the cluster, one held by its owner) and the state that the owner writes. owner.py starts
the cluster. This module reads and removes, also what a killed owner left: every process of a
cluster carries the directory's name in its environment, every cgroup that of a directory below it.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import re
import shlex
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lab.cluster import health, marked_directory
from lab.cluster.marked_directory import DirectoryError, Marked, one_spelling
from lab.node import cgroups, network
from lab.node.namespace import PARENT_CHARS_MAX, PREFIX

DIRECTORY: Final = "/tmp/gpuslice"
"""The default directory."""
MARK: Final = "GPUSLICE_CLUSTER_AT"
"""The variable of all processes of a cluster; its value is the directory."""
_LOG, _OWNER, _STATE, _KUBECONFIG = "cluster.log", "owner", "state.json", "kubeconfig"
_FILES: Final = (_LOG, _OWNER, _STATE, f"{_STATE}.new", _KUBECONFIG, f"{_KUBECONFIG}.lock")
"""All that is in it beside the marker and labs' directories; kubectl makes the last."""
_LAB: Final = re.compile(re.escape(PREFIX) + "[a-z0-9_]{8}")
_OWNER_END_S: Final = 60.0
_CLEAR_S: Final = 40.0


def add_option(parser: argparse.ArgumentParser, default: str = DIRECTORY) -> None:
    """Adds --at, which names the directory."""
    parser.add_argument(
        "--at",
        type=Path,
        default=Path(default),
        metavar="DIR",
        help=f"the cluster's directory, by default {default}",
    )


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The observed state. owner: its process number, None if no process holds the cluster.
    Without problems, and with `ready`, the cluster runs."""

    exists: bool
    owner: int | None
    ready: bool
    problems: tuple[str, ...]
    state: Mapping[str, Any]

    @property
    def is_healthy(self) -> bool:
        return self.ready and self.owner is not None and not self.problems


class ClusterDirectory:
    """One directory; a cluster is in it, or none. Raises DirectoryError."""

    def __init__(self, directory: Path) -> None:
        self.path = one_spelling(directory)
        self._marked = Marked(self.path, _FILES, _LAB)
        length = len(os.fsencode(self.path))
        if length > PARENT_CHARS_MAX:
            raise DirectoryError(
                f"{self.path}: {length} bytes; unix sockets below it must fit 107, so at most "
                f"{PARENT_CHARS_MAX}"
            )
        if not (str(self.path).isascii() and str(self.path).isprintable()):
            raise DirectoryError(f"{str(self.path)!r}: kubelet's paths must be printable ASCII")

    @property
    def kubeconfig(self) -> Path:
        return self.path / _KUBECONFIG

    @property
    def advice(self) -> str:
        """The shell argument of `make cluster` that selects this directory."""
        named = str(self.path)
        return "" if named == DIRECTORY else f" AT={shlex.quote(named)}"

    @property
    def log(self) -> Path:
        return self.path / _LOG

    @property
    def _state(self) -> Path:
        return self.path / _STATE

    @property
    def _owner(self) -> Path:
        return self.path / _OWNER

    # --- locks ------------------------------------------------------------------------------

    @contextmanager
    def changing(self, make: bool = True) -> Iterator[None]:
        """Only one process at a time starts or ends a cluster here. If `make` is false, a missing
        directory is not made. Raises DirectoryError, also if it has foreign content."""
        while True:
            if make:
                self._marked.make()
            elif not self._marked.exists():
                yield
                return
            try:
                descriptor = self._marked.opened()
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if self._is(descriptor):  # else another process has removed it meanwhile
                    self._marked.check()
                    if make:
                        self._marked.mark()
                    yield
                    return
            finally:
                os.close(descriptor)

    def own(self) -> None:
        """This process becomes the cluster's owner, until it exits. Raises DirectoryError."""
        descriptor = os.open(self._owner, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise DirectoryError(f"{self.path} has an owner already") from error
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())

    def write(self, state: Mapping[str, Any]) -> None:
        """The state that `read_status` reads; only the owner writes it."""
        fresh = self.path / f"{_STATE}.new"
        fresh.write_text(json.dumps(state))
        fresh.rename(self._state)

    # --- state ------------------------------------------------------------------------------

    def read_status(self) -> ClusterStatus:
        """Raises DirectoryError if access is denied."""
        try:
            exists = self._marked.is_marked() and any(self._marked.known())
            owner, state = self.owner(), self._read()
        except PermissionError as error:
            raise DirectoryError(f"only root may look into {self.path}") from error
        except FileNotFoundError:  # removed meanwhile
            exists, owner, state = False, None, {}
        if not exists:
            return ClusterStatus(False, None, False, (), {})
        ready = bool(state.get("ready"))
        problems: tuple[str, ...] = ()
        if owner is None:
            problems = ("the process that holds it has ended",)
        elif ready:
            problems = tuple(health.problems(state))
        return ClusterStatus(True, owner, ready, problems, state)

    def owner(self) -> int | None:
        """Number of the process that holds the cluster; None if there is none."""
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
            read: Mapping[str, Any] = json.loads(self._state.read_text())
        except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
            return {}
        return read

    # --- removal ----------------------------------------------------------------------------

    def clear(self) -> None:
        """Remove all that is left of a cluster, in any state, and the directory. Raises
        DirectoryError if something stays."""
        self.empty()
        self.remove()

    def empty(self) -> None:
        """Remove what `clear` removes. The directory stays, for another cluster."""
        self._marked.check()
        owner, state = self.owner(), self._read()
        if owner is not None:
            self._end(owner)
        # The programs and the namespaces end with the owner, which takes a moment.
        deadline = time.monotonic() + _CLEAR_S
        patience = time.monotonic() + _CLEAR_S / 2
        while left := self._processes():
            if time.monotonic() > deadline:
                raise DirectoryError(f"processes {left} do not end")
            if time.monotonic() > patience or owner is None:
                for pid in left:
                    _kill(pid)
            time.sleep(0.1)
        for each in self.path.glob(f"{PREFIX}*"):
            if not cgroups.remove(each.name, deadline - time.monotonic()):
                raise DirectoryError(f"cgroups {each.name} are still in use")
        if interface := state.get("interface"):
            network.remove(str(interface))
        self._marked.empty()

    def remove(self) -> None:
        """Remove its known content and the directory, when no process of it runs. Raises
        DirectoryError."""
        self._marked.remove()

    def left(self, status: ClusterStatus) -> list[str]:
        """Remains of a cluster that was observed here, after its end."""
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
            deadline = time.monotonic() + _OWNER_END_S
            while self.owner() == owner and time.monotonic() < deadline:
                time.sleep(0.05)

    def _processes(self) -> list[int]:
        found = marked_directory.processes(MARK, self.path)
        return [pid for pid in found if pid != os.getpid()]

    def _is(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self.path.lstat())
        except FileNotFoundError:
            return False


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
