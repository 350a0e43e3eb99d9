"""The host's control groups, and the processes that may limit them. Reads files.

The limits are in the driver's own table (its "misc" backend). If the root has a file dmem.capacity,
a group without the file dmem.max has no limits of its own, as with the kernel's DMEM controller.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuslice.gpu import cgroups

_CAP_SYS_ADMIN: Final = 1 << 21


@dataclass(frozen=True, slots=True)
class ControlGroups:
    root: Path

    def group_of(self, pid: int) -> str:
        """Return the directory of the process's control group; "" if it is not known."""
        try:
            found = cgroups.directory(Path(f"/proc/{pid}/cgroup").read_text(), self.root)
        except OSError:
            return ""
        return str(found or "")

    def inode(self, group: str) -> int:
        """Return the number by which the kernel tells a group from a later one of its name."""
        try:
            return os.stat(group).st_ino
        except OSError:
            return 0

    def may_have_limit(self, group: str) -> bool:
        path = Path(group)
        below = path.is_relative_to(self.root) and os.path.normpath(group) == group
        dmem = (self.root / "dmem.capacity").exists()
        return below and path.is_dir() and (not dmem or (path / "dmem.max").exists())

    def may_set(self, pid: int) -> bool:
        """Whether the process has the capability SYS_ADMIN in this user namespace."""
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            if not os.path.samefile(f"/proc/{pid}/ns/user", "/proc/self/ns/user"):
                return False
        except OSError:
            return False
        (held,) = (line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
        return bool(int(held, 16) & _CAP_SYS_ADMIN)
