"""Where a cluster is on this machine: what says that it is there, that it is well, that it is gone.

Holds a directory that only root may enter and that may be taken away (marked.py), its two locks
(who changes the cluster, who owns it) and what the owner writes of it. It starts nothing
(cluster.py); it looks, and it clears, also after an owner that was killed, and after anything else
that was: every process of a cluster carries the directory's name in its environment, every cgroup
that of a directory below it.
"""

from __future__ import annotations

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

from simgpu.lab import faults, holder, network
from simgpu.lab.marked import Marked, PlaceError, one_spelling
from simgpu.lab.namespace import PARENT_CHARS_MAX, PREFIX

DIRECTORY: Final = "/tmp/gpuslice"
"""Where a cluster is by default."""
MARK: Final = "GPUSLICE_CLUSTER_AT"
"""The variable of all processes of a cluster; its value is the directory."""
_LOG, _OWNER, _STATE, _KUBECONFIG = "cluster.log", "owner", "state.json", "kubeconfig"
_FILES: Final = (_LOG, _OWNER, _STATE, f"{_STATE}.new", _KUBECONFIG, f"{_KUBECONFIG}.lock")
"""All that is in it beside the marker and labs' directories; kubectl makes the last."""
_LAB: Final = re.compile(re.escape(PREFIX) + "[a-z0-9_]{8}")
_OWNER_END_S: Final = 60.0
_CLEAR_S: Final = 40.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What is there. owner: its number, None where nobody holds the cluster any more. faults: what
    is not as it should be; none and `ready` is a cluster that runs."""

    there: bool
    owner: int | None
    ready: bool
    faults: tuple[str, ...]
    state: Mapping[str, Any]

    @property
    def well(self) -> bool:
        return self.ready and self.owner is not None and not self.faults


class Place:
    """One directory; a cluster is in it, or none. Raises PlaceError."""

    def __init__(self, directory: Path) -> None:
        self.directory = one_spelling(directory)
        self._marked = Marked(self.directory, _FILES, _LAB)
        length = len(os.fsencode(self.directory))
        if length > PARENT_CHARS_MAX:
            raise PlaceError(
                f"{self.directory}: {length} bytes; unix sockets below it must fit 107, so at most "
                f"{PARENT_CHARS_MAX}"
            )
        if not (str(self.directory).isascii() and str(self.directory).isprintable()):
            raise PlaceError(f"{str(self.directory)!r}: kubelet's paths must be printable ASCII")

    @property
    def kubeconfig(self) -> Path:
        return self.directory / _KUBECONFIG

    @property
    def advice(self) -> str:
        """What follows `make cluster`, in a shell, to say that this one is meant."""
        named = str(self.directory)
        return "" if named == DIRECTORY else f" AT={shlex.quote(named)}"

    @property
    def log(self) -> Path:
        return self.directory / _LOG

    @property
    def _state(self) -> Path:
        return self.directory / _STATE

    @property
    def _owner(self) -> Path:
        return self.directory / _OWNER

    # --- who may ----------------------------------------------------------------------------

    @contextmanager
    def changing(self, make: bool = True) -> Iterator[None]:
        """One at a time brings a cluster up or down here. Nothing is made where `make` is false and
        nothing is there. Raises PlaceError, also where the directory is not a cluster's alone."""
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
                if self._is(descriptor):  # else somebody has cleared it while we waited
                    self._marked.check()
                    if make:
                        self._marked.mark()
                    yield
                    return
            finally:
                os.close(descriptor)

    def own(self) -> None:
        """From now on this process is the cluster's owner, until it ends. Raises PlaceError."""
        descriptor = os.open(self._owner, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise PlaceError(f"{self.directory} has an owner already") from error
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())

    def write(self, state: Mapping[str, Any]) -> None:
        """What `look` is to know; the owner's to write."""
        fresh = self.directory / f"{_STATE}.new"
        fresh.write_text(json.dumps(state))
        fresh.rename(self._state)

    # --- what is there ----------------------------------------------------------------------

    def look(self) -> Seen:
        """Raises PlaceError where it may not."""
        try:
            there = self._marked.is_marked() and any(self._marked.known())
            owner, state = self.owner(), self._read()
        except PermissionError as error:
            raise PlaceError(f"only root may look into {self.directory}") from error
        except FileNotFoundError:  # cleared while we looked
            there, owner, state = False, None, {}
        if not there:
            return Seen(False, None, False, (), {})
        ready = bool(state.get("ready"))
        against: tuple[str, ...] = ()
        if owner is None:
            against = ("the process that holds it has ended",)
        elif ready:
            against = tuple(faults.found(state))
        return Seen(True, owner, ready, against, state)

    def owner(self) -> int | None:
        """The number of the process that holds the cluster; None where there is none."""
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

    # --- its end ----------------------------------------------------------------------------

    def clear(self) -> None:
        """Whatever is left of a cluster, in whatever state, and the directory. Raises PlaceError
        where some stays."""
        self.empty()
        self.remove()

    def empty(self) -> None:
        """As `clear`; the directory stays, for another cluster."""
        self._marked.check()
        owner, state = self.owner(), self._read()
        if owner is not None:
            self._end(owner)
        # The holder of the namespaces and the keepers of programs see the owner's end by
        # themselves; who was killed or stopped before does not.
        deadline = time.monotonic() + _CLEAR_S
        patience = time.monotonic() + _CLEAR_S / 2
        while left := self._processes():
            if time.monotonic() > deadline:
                raise PlaceError(f"processes {left} do not end")
            if time.monotonic() > patience or owner is None:
                for pid in left:
                    _kill(pid)
            time.sleep(0.1)
        for each in self.directory.glob(f"{PREFIX}*"):
            # The containers' processes end with their namespace, which is a while after its first.
            holder.remove_cgroups(each.name)
            while holder.cgroups(each.name):
                if time.monotonic() > deadline:
                    raise PlaceError(f"cgroups {each.name} are still in use")
                time.sleep(0.1)
                holder.remove_cgroups(each.name)
        if interface := state.get("interface"):
            network.remove(str(interface))
        self._marked.empty()

    def remove(self) -> None:
        """What is known in it, and the directory, when nothing of it runs. Raises PlaceError."""
        self._marked.remove()

    def left(self, seen: Seen) -> list[str]:
        """What is still there of a cluster that was seen here, after its end."""
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        left = [
            *(f"process {pid}" for pid in self._processes()),
            *(f"mount {line.split()[1]}" for line in mounts if f"{self.directory}/" in line),
            *([f"directory {self.directory}"] if self.directory.exists() else []),
        ]
        if lab := seen.state.get("directory"):
            left += [f"cgroup {group}" for group in holder.cgroups(Path(lab).name)]
        if (interface := seen.state.get("interface")) and network.is_there(interface):
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
        mark = f"{MARK}={self.directory}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found

    def _is(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self.directory.lstat())
        except FileNotFoundError:
            return False


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
