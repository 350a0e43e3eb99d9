"""Reads what the processes of containers show in /proc: the GPU, our library, the mounts.

No path of a container is opened or followed, because a tenant's file system (FUSE) can delay even a
stat for ever: only files of /proc are read, and the texts of its links. A process is identified by
the inode of its directory, and its program by the auxiliary vector, whose addresses change with
each exec. What was read of them once is not read again. Blocks: run it in a thread.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpuslice.gpu import cgroups
from gpuslice.kube.log_lines import Line
from nri_plugin.policy import mountinfo
from nri_plugin.policy.mountinfo import Location

_LOG: Final = logging.getLogger(__name__)

_YOUNG_LOOKS: Final = 2
"""Looks in which a process can still enter its container, or map its libraries."""
_SELDOM: Final = 4
"""Every so many looks what rarely changes is read: the program of a process that has our library
and no GPU, and the mounts of a container in which no program was started."""
_LOADS_LOOKS: Final = 10
"""Looks after which a process with a GPU counts as started, although only the loader is mapped."""
_CONTAINER_S: Final = 0.05
"""The processor time of a look at one container, whose tenant can make each file long. Processes
that NVML lists come first, then the newest."""
_NODE_S: Final = 0.1
"""The same of a look at all containers."""
_DESCRIPTORS_MAX: Final = 4096
_NAMESPACES_MAX: Final = 16
_MOUNTS_BYTES_MAX: Final = 256 << 10
_READ_BYTES: Final = 64 << 10
_BYTES_MAX: Final = 16 << 20
_LONG: Final = ("maps", "mountinfo")
"""Files that take more than one read."""
_REPLACED: Final = "/deleted"
"""Behind the path of a mounted file that the agent's repair has replaced (`//deleted`)."""
_GPU: Final = re.compile(r"/dev/nvidia\d+")
_LOADER: Final = re.compile(r"/ld(-linux[^/]*|64|-[\d.]+)?\.so[\d.]*$")
"""glibc's loader, which maps the preloaded libraries before all others. musl's maps none."""
_SHARED_OBJECT: Final = re.compile(r"\.so[\d.]*( \(deleted\))?$")
_Libraries = Callable[[], Container[str]]
"""Returns the published libraries, as has_library() takes them."""


@dataclass(eq=False)
class Process:
    """A process of the host. has_library: None if it has ended or the loader still works."""

    pid: int
    cgroup: str = ""
    container: str | None = None
    looks: int = 0
    program: bytes = b""
    """Its auxiliary vector. A process that has ended has none."""
    program_looks: int = 0
    namespace: str = ""
    """Its mount namespace: only what it executes there afterwards may lack the library."""
    has_library: bool | None = None
    device: str = ""
    """A GPU's device that it has open; only looked for while it has not mapped our library."""

    @property
    def is_settled(self) -> bool:
        return bool(self.has_library) and self.program_looks > _YOUNG_LOOKS


@dataclass(eq=False)
class _Mounts:
    """A container's mounts. expected: what must be at our paths; None: not known yet. intact: the
    tables in which that was so, by namespace. root: the container's root. A namespace with another
    root is a sandbox's own and not judged."""

    expected: Mapping[str, Location] | None = None
    intact: dict[str, bytes] = field(default_factory=dict)
    root: Location | None = None
    long: set[str] = field(default_factory=set)
    """Namespaces whose tables are too long to be read."""
    rest: bool = False
    """Whether the last look found them intact."""
    are_due: bool = True


class ContainerProcesses:
    """proc: where /proc is."""

    def __init__(self, proc: Path) -> None:
        self._proc = f"{proc}/"
        self._inodes: Mapping[int, int] = {}
        self._known: set[str] = set()
        self.by_pid: dict[int, Process] = {}
        self.own = ""
        """The agent's control group."""
        self._number = 0
        self._mounts: dict[str, _Mounts] = {}
        self.missed: set[str] = set()
        """Containers that the last look did not read, or not whole."""
        self._late: list[str] = []
        """Those that it did not read at all, the longest waiting first."""
        self._has_missed = False
        self._is_late = _deadline(0)
        """Of the container that `look` yielded last."""
        self._own_mounts: tuple[bytes, Sequence[mountinfo.Line]] = b"", ()

    def find(self, known: Collection[str], listed: Container[int]) -> None:
        """Update `by_pid`. known: the IDs of the containers. listed: the processes that NVML lists.
        Raises OSError."""
        self.own = self.own or self._cgroup("self")
        with os.scandir(self._proc) as entries:
            inodes = {int(each.name): each.inode() for each in entries if each.name.isdigit()}
        if inodes != self._inodes:
            for pid in self._inodes.keys() - inodes.keys():
                del self.by_pid[pid]
            for pid, _ in inodes.items() - self._inodes.items():
                self.by_pid[pid] = Process(pid)
        new = {*known} - self._known
        self._inodes, self._known = inodes, {*known}
        for pid, each in self.by_pid.items():
            if each.looks < _YOUNG_LOOKS or (
                each.container is None
                and (pid in listed or (new and any(map(each.cgroup.__contains__, new))))
            ):
                each.looks += 1
                each.cgroup = self._cgroup(pid)
                each.container = cgroups.container_of(each.cgroup, self._known)

    def look(
        self, known: Container[str], listed: Container[int], libraries: _Libraries
    ) -> Iterator[tuple[str, Sequence[Process]]]:
        """Yield containers with those of their processes that may have changed. One that the time
        of this look does not reach is among the first of the next look. known, listed: as for
        `find`."""
        found: defaultdict[str, list[Process]] = defaultdict(list)
        for each in self.by_pid.values():
            if each.container is not None and each.container in known:
                found[each.container].append(each)
        self._number += 1
        self._mounts = {key: self._mounts.get(key) or _Mounts() for key in found}
        late, self._late, self.missed = self._late, [], set()
        is_node_late = _deadline(_NODE_S)
        for container in [*filter(found.__contains__, late), *(found.keys() - {*late})]:
            mounts, processes = self._mounts[container], found[container]
            mounts.are_due = not mounts.rest or (hash(container) + self._number) % _SELDOM == 0
            if not mounts.are_due:
                processes = [p for p in processes if p.pid in listed or not p.is_settled]
            if not processes:
                continue
            if is_node_late():
                self._late.append(container)
                self._miss(container)
                continue
            processes.sort(key=lambda each: (each.pid in listed, each.pid), reverse=True)
            self._is_late = is_late = _deadline(_CONTAINER_S)
            yield (
                container,
                [
                    each
                    for each in processes
                    if not is_late() and self._read(each, each.pid in listed, libraries)
                ],
            )

    def _miss(self, container: str) -> None:
        if not self._has_missed:
            self._has_missed = True
            _LOG.warning(Line("audit: a look takes too long", container_id=container))
        self.missed.add(container)
        self._mounts[container].rest = False

    def hidden(
        self, container: str, processes: Sequence[Process], places: Callable[[], Mapping[str, str]]
    ) -> Iterator[tuple[str, str, int]]:
        """Yield mount namespaces of the processes in which a mount of ours is not at its path any
        more, with the path and a process. places: returns the host's files by path in the
        container. Before all were found once, nothing is yielded: a runtime may be making the
        mounts, and the agent proves them at the start (host/verifier.py)."""
        mounts, seen = self._mounts[container], set[str]()
        if mounts.expected is None:
            mounts.expected = self._expected(places())
        has_new = any(each.program_looks <= _YOUNG_LOOKS for each in processes)
        if not mounts.expected or not (mounts.are_due or has_new):
            return
        mounts.rest = True
        for each in processes:
            if each.program_looks <= _YOUNG_LOOKS:
                each.namespace = self._link(each.pid, "ns/mnt")
            namespace = each.namespace
            if not namespace or namespace in seen or self._link(each.pid, "root") != "/":
                continue
            seen.add(namespace)
            if namespace in mounts.long:
                continue
            if self._is_late():
                self._miss(container)
                return
            text = self._text(each.pid, "mountinfo", _MOUNTS_BYTES_MAX + 1)
            if len(text) > _MOUNTS_BYTES_MAX:
                mounts.long.add(namespace)
            elif text and text != mounts.intact.get(namespace):
                path = _hidden(mounts, text)
                if path == "":
                    mounts.intact[namespace] = text
                elif path:
                    mounts.rest = False
                    yield namespace, path, each.pid
            if len(seen) == _NAMESPACES_MAX:
                break
        if mounts.are_due:
            mounts.intact = {key: text for key, text in mounts.intact.items() if key in seen}
            mounts.long &= seen
        mounts.rest = mounts.rest and bool(mounts.intact)

    def _expected(self, places: Mapping[str, str]) -> Mapping[str, Location]:
        text = self._text("self", "mountinfo")
        if text != self._own_mounts[0]:
            self._own_mounts = text, list(mountinfo.parse(text.decode(errors="replace")))
        own = self._own_mounts[1]
        found = {at: mountinfo.location_of(own, file) for at, file in places.items()}
        return {at: file for at, file in found.items() if file}

    def is_proven(self, container: str) -> bool:
        """Return whether all our mounts were found once. A container whose library was replaced
        before that maps a file that the agent does not know."""
        return self._mounts[container].root is not None

    def program(self, pid: int) -> str:
        """Return the path of the process's executable; "": it has ended."""
        return self._link(pid, "exe")

    def _cgroup(self, pid: int | str) -> str:
        return self._text(pid, "cgroup").decode(errors="replace")

    def _read(self, each: Process, is_listed: bool, libraries: _Libraries) -> bool:
        """Read what may have changed. Return False if the process has ended."""
        program = self._text(each.pid, "auxv")
        if not program:
            return False
        if program != each.program:
            each.program, each.program_looks, each.has_library = program, 0, None
        each.program_looks += 1
        if each.has_library:
            return True
        each.device = self._device(each.pid)
        if is_listed or each.device or each.program_looks <= _YOUNG_LOOKS:
            late = each.program_looks > _LOADS_LOOKS
            maps = self._text(each.pid, "maps").decode(errors="replace")
            each.has_library = has_library(maps, libraries(), late)
        return True

    def _device(self, pid: int) -> str:
        """Return the path of a GPU's device that the process has open; "": it has none."""
        directory = f"{self._proc}{pid}/fd"
        with suppress(OSError):
            for name in os.listdir(directory)[:_DESCRIPTORS_MAX]:
                with suppress(OSError):
                    target = os.readlink(f"{directory}/{name}")
                    if _GPU.fullmatch(target):
                        return target
        return ""

    def _link(self, pid: int, name: str) -> str:
        with suppress(OSError):
            return os.readlink(f"{self._proc}{pid}/{name}")
        return ""

    def _text(self, pid: int | str, name: str, most: int = _BYTES_MAX) -> bytes:
        """Return the file's content, at least `most` bytes of a long one; b"" if it cannot be read,
        for example of an exited process."""
        try:
            descriptor = os.open(f"{self._proc}{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            data = part = os.read(descriptor, _READ_BYTES)
            while part and len(data) < most and name in _LONG:
                part = os.read(descriptor, _READ_BYTES)
                data += part
            return data
        except OSError:
            return b""
        finally:
            os.close(descriptor)


def _deadline(seconds: float) -> Callable[[], bool]:
    """Return a function that returns whether this much processor time has passed."""
    wall_s, end_s = time.monotonic() + seconds, time.thread_time() + seconds
    # The clock of the thread takes a system call.
    return lambda: time.monotonic() >= wall_s and time.thread_time() >= end_s


def _hidden(mounts: _Mounts, text: bytes) -> str | None:
    """Return the first path at which our mount is not found; "": none. None: not known."""
    visible = mountinfo.Visible(list(mountinfo.parse(text.decode(errors="replace"))))
    root = visible.at("/")
    path = ""
    for at, file in (mounts.expected or {}).items():
        seen = visible.at(at)
        replaced = mounts.root and Location(file.device, file.root + _REPLACED)
        if seen is None or seen not in (file, replaced):
            path = at
            break
    if not path:
        mounts.root = root
    return path if not path or root == mounts.root else None


def has_library(maps: str, libraries: Container[str], late: bool = False) -> bool | None:
    """Return whether a process has mapped our library. None: it has ended, or its loader may still
    map it. maps: /proc/PID/maps. libraries: "DEVICE INODE" as there. late: it has had the time."""
    files = {}
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) > 5 and fields[4] != "0":
            files[f"{fields[3]} {fields[4]}"] = fields[5]
    if any(each in libraries for each in files):
        return True
    shared = [path for path in files.values() if _SHARED_OBJECT.search(path)]
    loads = shared != [] and all(map(_LOADER.search, shared)) and not late
    return None if loads or not files else False
