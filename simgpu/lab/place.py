"""Where a cluster is on this machine: what says that it is there, that it is well, that it is gone.

Holds a directory that only root may enter, its two locks (who changes the cluster, who owns it) and
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
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from simgpu.lab import holder, network
from simgpu.lab.namespace import PARENT_CHARS_MAX, PREFIX

MARK: Final = "GPUSLICE_CLUSTER_AT"
"""The variable of all processes of a cluster; its value is the directory."""
_OWNER_END_S: Final = 60.0
_CLEAR_S: Final = 40.0
_KUBECTL_S: Final = 15.0
_PAGE_S: Final = 5.0


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
        self.directory = directory.absolute()
        if len(str(self.directory)) > PARENT_CHARS_MAX:
            raise PlaceError(
                f"{self.directory}: {len(str(self.directory))} characters; unix sockets below it "
                f"must fit 107, so at most {PARENT_CHARS_MAX}"
            )

    @property
    def kubeconfig(self) -> Path:
        return self.directory / "kubeconfig"

    @property
    def log(self) -> Path:
        return self.directory / "cluster.log"

    @property
    def _state(self) -> Path:
        return self.directory / "state.json"

    @property
    def _owner(self) -> Path:
        return self.directory / "owner"

    # --- who may ----------------------------------------------------------------------------

    @contextmanager
    def changing(self, make: bool = True) -> Iterator[None]:
        """One at a time brings a cluster up or down here. Nothing is made where `make` is false and
        nothing is there."""
        while True:
            if make:
                with contextlib.suppress(FileExistsError):
                    self.directory.mkdir(mode=0o700)
            elif not self.directory.exists():
                yield
                return
            self._check()
            descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if self._is(descriptor):  # else somebody has cleared it while we waited
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
        fresh = self._state.with_suffix(".new")
        fresh.write_text(json.dumps(state))
        fresh.rename(self._state)

    # --- what is there ----------------------------------------------------------------------

    def look(self) -> Seen:
        owner, state = self.owner(), self._read()
        there = self.directory.is_dir() and any(self.directory.iterdir())
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
        except FileNotFoundError:
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
        except (FileNotFoundError, json.JSONDecodeError):
            return {}
        return read

    # --- its end ----------------------------------------------------------------------------

    def clear(self) -> None:
        """Whatever is left of a cluster, in whatever state. Raises PlaceError where some stays."""
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
        shutil.rmtree(self.directory, ignore_errors=True)
        if self.directory.exists():
            raise PlaceError(f"{self.directory} cannot be removed")

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

    def _check(self) -> None:
        """A directory that somebody else made in /tmp could be changed under our hands; one with
        other things in it would go with the cluster."""
        with contextlib.suppress(FileNotFoundError):
            status = self.directory.lstat()
            ours = status.st_uid == os.geteuid() and not status.st_mode & 0o077
            if not (self.directory.is_dir() and not self.directory.is_symlink() and ours):
                raise PlaceError(f"{self.directory} is not a directory of ours with mode 0700")
            inside = list(self.directory.iterdir())
            known = (self.log.name, self._owner.name, PREFIX)
            if inside and not any(path.name.startswith(known) for path in inside):
                raise PlaceError(f"{self.directory} has other things in it, and no cluster")

    def _is(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self.directory.lstat())
        except FileNotFoundError:
            return False


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
