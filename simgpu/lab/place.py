"""Where a cluster is on this machine: what says that it is there, that it is well, that it is gone.

Holds a directory that only root may enter, marked by a file as one that may be taken away with what
is known in it, and nothing else; its two locks (who changes the cluster, who owns it) and
what the owner writes of it. It starts nothing (cluster.py); it looks, and it clears, also after an
owner that was killed, and after anything else that was: every process of a cluster carries the
directory's name in its environment, every cgroup that of a directory below it.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import re
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from simgpu.lab import holder, network
from simgpu.lab.namespace import PARENT_CHARS_MAX, PREFIX

DIRECTORY: Final = "/tmp/gpuslice"
"""Where a cluster is by default."""
MARK: Final = "GPUSLICE_CLUSTER_AT"
"""The variable of all processes of a cluster; its value is the directory."""
_MARKER: Final = ".gpuslice-cluster"
_MARKER_TEXT: Final = "made by make cluster, and removed by make cluster-down\n"
_LOG, _OWNER, _STATE, _KUBECONFIG = "cluster.log", "owner", "state.json", "kubeconfig"
_FILES: Final = (_LOG, _OWNER, _STATE, f"{_STATE}.new", _KUBECONFIG, f"{_KUBECONFIG}.lock")
"""All that is in it beside the marker and labs' directories; kubectl makes the last."""
_LAB: Final = re.compile(re.escape(PREFIX) + "[a-z0-9_]{8}")
_OWNER_END_S: Final = 60.0
_CLEAR_S: Final = 40.0
_KUBECTL_S: Final = 15.0
_PAGE_S: Final = 5.0
_NAMES_SHOWN: Final = 3


class PlaceError(RuntimeError):
    """The directory is not one to use, or cannot be cleared; the text says why."""


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
        self.directory = _one_spelling(directory)
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
                self._make()
            elif not self._exists():
                yield
                return
            try:
                descriptor = self._opened()
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if self._is(descriptor):  # else somebody has cleared it while we waited
                    self._check()
                    if make:
                        (self.directory / _MARKER).write_text(_MARKER_TEXT)
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
            there = self._is_marked() and any(self._known())
            owner, state = self.owner(), self._read()
        except PermissionError as error:
            raise PlaceError(f"only root may look into {self.directory}") from error
        except FileNotFoundError:  # cleared while we looked
            there, owner, state = False, None, {}
        if not there:
            return Seen(False, None, False, (), {})
        ready = bool(state.get("ready"))
        faults: tuple[str, ...] = ()
        if owner is None:
            faults = ("the process that holds it has ended",)
        elif ready:
            faults = tuple(_faults(state))
        return Seen(True, owner, ready, faults, state)

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
        self._check()
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
        self._remove_known()

    def remove(self) -> None:
        """The directory and what is known in it, of which nothing runs any more. Raises PlaceError
        where some stays."""
        self._remove_known()
        try:
            if self._is_marked():
                (self.directory / _MARKER).unlink()
            self.directory.rmdir()
        except FileNotFoundError:
            pass
        except OSError as error:
            raise PlaceError(f"{self.directory} cannot be removed: {error.strerror}") from error

    def _remove_known(self) -> None:
        if not self._is_marked():
            return
        for path in self._known():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        if left := [path.name for path in self._known()]:
            raise PlaceError(f"{', '.join(left)} in {self.directory} cannot be removed")

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

    # --- whose it is ------------------------------------------------------------------------

    def _make(self) -> None:
        try:
            self.directory.mkdir(mode=0o700)
        except FileExistsError:
            pass
        except OSError as error:
            raise PlaceError(f"{self.directory} cannot be made: {error.strerror}") from error

    def _exists(self) -> bool:
        return os.path.lexists(self.directory)

    def _opened(self) -> int:
        """A directory that somebody else made in /tmp could be changed under our hands."""
        status = self.directory.lstat()
        ours = status.st_uid == os.geteuid() and not status.st_mode & 0o077
        if not (stat.S_ISDIR(status.st_mode) and ours):
            raise PlaceError(f"{self.directory} is not a directory of ours with mode 0700")
        return os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)

    def _check(self) -> None:
        """What is in it goes with the cluster, so nothing may be of somebody else's."""
        if not self._exists():
            return
        inside = {path.name for path in self.directory.iterdir()}
        if inside and not self._is_marked():
            raise PlaceError(
                f"{self.directory} has other things in it, and is not marked as a cluster's: "
                f"{_some(inside)}"
            )
        if foreign := inside - {_MARKER, *(path.name for path in self._known())}:
            raise PlaceError(
                f"{self.directory} has other things in it than a cluster; move them away first: "
                f"{_some(foreign)}"
            )

    def _is_marked(self) -> bool:
        marker = self.directory / _MARKER
        try:
            return not marker.is_symlink() and marker.read_text() == _MARKER_TEXT
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, UnicodeDecodeError):
            return False

    def _known(self) -> list[Path]:
        """What a cluster has made in it, by exact names, beside the marker."""
        found = []
        for entry in os.scandir(self.directory):
            directory = entry.is_dir(follow_symlinks=False) and _LAB.fullmatch(entry.name)
            if directory or (entry.is_file(follow_symlinks=False) and entry.name in _FILES):
                found.append(Path(entry.path))
        return found

    def _is(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self.directory.lstat())
        except FileNotFoundError:
            return False


def _one_spelling(directory: Path) -> Path:
    """Of a directory that is named in many ways. Its last name may be a link, which is refused."""
    try:
        named = directory.name not in ("", "..")
        return directory.parent.resolve() / directory.name if named else directory.resolve()
    except (OSError, RuntimeError) as error:  # the latter for links in a circle
        raise PlaceError(f"{directory}: {error}") from error


def _some(names: Iterable[str]) -> str:
    shown = sorted(names)
    return ", ".join(map(repr, shown[:_NAMES_SHOWN])) + (", ..." if shown[_NAMES_SHOWN:] else "")


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _faults(state: Mapping[str, Any]) -> Iterator[str]:
    """What the owner's table and the cluster itself say against it."""
    for name, part in state["parts"].items():
        pid = part["pid"]
        if pid is None or not Path(f"/proc/{pid}").exists():
            yield f"{name} is not running"
        elif name in state["pages"] and (why_not := _why_not_ready(state["pages"][name])):
            yield f"{name} is not ready: {why_not}"
    path = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
    command = [
        *(state["kubectl"], f"--kubeconfig={state['kubeconfig']}", "--request-timeout=10s"),
        f"--cache-dir={state['directory']}/kubectl",  # by default it writes into the user's home
        *("get", "node", state["node"], "-o", path),
    ]
    try:
        done = subprocess.run(
            command,
            env=network.unproxied(os.environ),
            text=True,
            capture_output=True,
            timeout=_KUBECTL_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        yield f"kubectl: {error}"
        return
    if done.returncode != 0:
        yield f"the API server does not answer: {done.stderr.strip()}"
    elif done.stdout != "True":
        yield "the node is not Ready"


def _why_not_ready(page: str | Sequence[str | int]) -> str:
    """What /readyz says there, the path of a socket or a host and a port; "" where it is well."""
    try:
        with socket.socket(socket.AF_UNIX if isinstance(page, str) else socket.AF_INET) as asking:
            asking.settimeout(_PAGE_S)
            asking.connect(page if isinstance(page, str) else tuple(page))
            asking.sendall(b"GET /readyz HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
            answer = http.client.HTTPResponse(asking)
            answer.begin()
            text = answer.read().decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as error:
        return str(error)
    return "" if answer.status == 200 else text
