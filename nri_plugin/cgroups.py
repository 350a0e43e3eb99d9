"""Which container a process of this host is in, by its control group. Pure.

Runtimes name the group of a container by the container's ID: `ID` (cgroupfs),
`cri-containerd-ID.scope` (systemd), `SLICE:cri-containerd:ID` (systemd names, made by cgroupfs).
Programs may make groups below it. With version 1 there is a line per hierarchy, with version 2 one.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Final

_SEPARATORS: Final = re.compile("[/:.-]")


def container_of(cgroup: str, known: Container[str]) -> str | None:
    """cgroup: the text of /proc/PID/cgroup. known: container IDs, of which one is returned."""
    for line in cgroup.splitlines():
        path = line.split(":", 2)[-1]
        for part in path.split("/"):
            for name in (part, *_SEPARATORS.split(part)):
                if name and name in known:
                    return name
    return None
