"""Control groups of processes and containers: their directories, and the DMEM controller.

`root` is the directory of cgroup v2, or of a hierarchy of v1 that has its controller's name.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

_DMEM: Final = "dmem"
_SEPARATORS: Final = re.compile("[/:.-]")


def directory(text: str, root: Path) -> Path | None:
    """Return the directory of a process's control group. None: it has none below `root`. text: the
    process's /proc/PID/cgroup. Pure."""
    found: str | None = None
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if root.name in controllers.split(","):
            found = path
            break
        if number == "0":
            found = path
    if not found or ".." in PurePosixPath(found).parts:
        return None
    return root / found.lstrip("/")


def of_container(text: str, root: Path, container_id: str) -> Path | None:
    """Return the container's own control group. None: the process is in another one. text: as for
    `directory`, of a process of the container, which may be in a group below. Pure."""
    group = directory(text, root)
    for path in (group, *group.parents) if group else ():
        if container_id in _ids(path.name) and path != root:
            return path
    return None


def container_of(text: str, known: Container[str]) -> str | None:
    """Return the ID of the known container in which a process runs; None: it runs in none. text: as
    for `directory`; cgroup v1 has a line per hierarchy, v2 has one. The process may be in a group
    below the container's. Pure."""
    for line in text.splitlines():
        for part in line.split(":", 2)[-1].split("/"):
            for found in _ids(part):
                if found in known:
                    return found
    return None


def _ids(name: str) -> Iterator[str]:
    """Yield what may be a container's ID in a control group's name. The name is `ID` (cgroupfs),
    `cri-containerd-ID.scope` (systemd), or `SLICE:cri-containerd:ID` (systemd's names, created by
    cgroupfs)."""
    yield from filter(None, (name, *_SEPARATORS.split(name)))


def enable_dmem(root: Path, group: Path, bus_ids: Iterable[str]) -> None:
    """Enable the controller in the parents of `group` that lack it, if the kernel's controller
    lists one of the GPUs. bus_ids: their PCI addresses. It is never disabled, because others may
    use it. Raises OSError."""
    try:
        capacity = (root / "dmem.capacity").read_text()
    except FileNotFoundError:  # the driver keeps the limits itself
        return
    if not any(f"/{bus_id}/" in capacity for bus_id in bus_ids if bus_id):
        return
    for parent in reversed(group.relative_to(root).parents):
        control = root / parent / "cgroup.subtree_control"
        if _DMEM not in control.read_text().split():
            control.write_text(f"+{_DMEM}")
