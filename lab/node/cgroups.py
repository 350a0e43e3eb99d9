"""Control groups: the groups of a lab, which have one name, and a memory group as of a pod.

The kernel charges a memory group for its processes' memory, for kernel memory that they use, and
for the tmpfs files that they write. A file stays charged after its writer has exited. Both cgroup
versions work.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/cgroup")
_POLL_S: Final = 0.05
REMOVE_TIMEOUT_S: Final = 60.0

_V1: Final = ROOT / "memory"
HIERARCHY: Final = ROOT / "pids" if (ROOT / "pids").is_dir() else ROOT
"""A hierarchy that can stand for cgroup v2 where the machine has v1: the GPU memory limits of
groups, which simgpu and the agent set, need no controller."""


def named(name: str) -> list[Path]:
    """Return the groups of that name in every hierarchy."""
    tops = [ROOT, *(path for path in ROOT.iterdir() if path.is_dir())]
    # Under cgroup v1, runc makes groups below the group in which runc itself runs.
    own = {line.split(":", 2)[2].lstrip("/") for line in _OWN.read_text().splitlines()}
    found = {top / inner / name for top in tops for inner in own | {""}}
    return [group for group in found if group.is_dir()]


def remove(name: str, within_s: float = 0.0) -> bool:
    """Remove the empty groups of that name. Return False if processes remain after `within_s`.

    The kernel may count a killed process for some milliseconds after its exit.
    """
    deadline_s = time.monotonic() + within_s
    while groups := named(name):
        for group in groups:
            inner = sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True)
            for path in [*inner, group]:
                with contextlib.suppress(OSError):
                    path.rmdir()
        if time.monotonic() >= deadline_s:
            return not named(name)
        time.sleep(_POLL_S)
    return True


def into(group: Path) -> list[str]:
    """Return a command prefix that moves the process into the group."""
    return ["sh", "-c", 'echo $$ >"$0" && exec "$@"', str(group / "cgroup.procs")]


class MemoryGroup:
    """The memory group `name` below the root of its hierarchy. limit_bytes: 0 is no limit."""

    def __init__(self, name: str, limit_bytes: int = 0) -> None:
        self._name = name
        self._is_v1 = _V1.is_dir()
        self.path = (_V1 if self._is_v1 else ROOT) / name
        if not self._is_v1:
            (ROOT / "cgroup.subtree_control").write_text("+memory")
        self.path.mkdir()
        if limit_bytes:
            limit = "memory.limit_in_bytes" if self._is_v1 else "memory.max"
            (self.path / limit).write_text(str(limit_bytes))

    def container(self, number: int) -> Path:
        """Make a group below this one, such as a container of the pod has."""
        path = self.path / f"container-{number}"
        if not self._is_v1:
            (self.path / "cgroup.subtree_control").write_text("+memory")
        path.mkdir()
        return path

    @property
    def working_set_bytes(self) -> int:
        """The group's usage as the kubelet computes it: without the file pages that the kernel
        reclaims first."""
        usage = "memory.usage_in_bytes" if self._is_v1 else "memory.current"
        inactive = "total_inactive_file" if self._is_v1 else "inactive_file"
        return int((self.path / usage).read_text()) - _fields(self.path / "memory.stat")[inactive]

    @property
    def killed(self) -> int:
        """The number of processes that the kernel killed for lack of memory."""
        name = "memory.oom_control" if self._is_v1 else "memory.events"
        # cgroup v2 includes the counts of the groups below.
        below = [each for each in self.path.iterdir() if each.is_dir()] if self._is_v1 else []
        return sum(_fields(group / name)["oom_kill"] for group in (self.path, *below))

    def remove(self) -> None:
        """Kill the processes that are left in the group. Remove the group and those below it.

        A killed program's children end after it. Raises TimeoutError if a process remains after
        REMOVE_TIMEOUT_S.
        """
        deadline_s = time.monotonic() + REMOVE_TIMEOUT_S
        while not remove(self._name):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{self.path}: still has processes after {REMOVE_TIMEOUT_S} s")
            for file in (self.path / "cgroup.procs", *self.path.glob("*/cgroup.procs")):
                for pid in file.read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
            time.sleep(_POLL_S)


def _fields(file: Path) -> dict[str, int]:
    return {key: int(value) for key, value in map(str.split, file.read_text().splitlines())}
