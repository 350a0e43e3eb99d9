"""A control group of memory, of either version, as a pod has one.

The kernel charges a group for its processes, for the kernel memory that they use, and for the files
on tmpfs that they write. A file stays charged when the process that wrote it has exited.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from lab.node import holder

_V1: Final = holder.CGROUPS / "memory"


class MemoryGroup:
    """The group NAME, below the root of its hierarchy. limit_bytes 0: no limit."""

    def __init__(self, name: str, limit_bytes: int = 0) -> None:
        self._name = name
        self._is_v1 = _V1.is_dir()
        self.path = (_V1 if self._is_v1 else holder.CGROUPS) / name
        if not self._is_v1:
            (holder.CGROUPS / "cgroup.subtree_control").write_text("+memory")
        self.path.mkdir()
        if limit_bytes:
            limit = "memory.limit_in_bytes" if self._is_v1 else "memory.max"
            (self.path / limit).write_text(str(limit_bytes))

    def container(self, number: int) -> Path:
        """A new group below it, as a container of the pod has one."""
        path = self.path / f"container-{number}"
        if not self._is_v1:
            (self.path / "cgroup.subtree_control").write_text("+memory")
        path.mkdir()
        return path

    @property
    def working_set_bytes(self) -> int:
        """As the kubelet computes it: the usage without file pages that the kernel reclaims
        first."""
        usage = "memory.usage_in_bytes" if self._is_v1 else "memory.current"
        inactive = "total_inactive_file" if self._is_v1 else "inactive_file"
        return int((self.path / usage).read_text()) - _fields(self.path / "memory.stat")[inactive]

    @property
    def killed(self) -> int:
        """Processes that the kernel killed for lack of memory."""
        name = "memory.oom_control" if self._is_v1 else "memory.events"
        # Version 2 counts those of the groups below here, too.
        below = [each for each in self.path.iterdir() if each.is_dir()] if self._is_v1 else []
        return sum(_fields(group / name)["oom_kill"] for group in (self.path, *below))

    def remove(self) -> None:
        """Remove it and the groups below; no process may be left in them."""
        holder.remove_cgroups(self._name)


def _fields(file: Path) -> dict[str, int]:
    return {key: int(value) for key, value in map(str.split, file.read_text().splitlines())}
