"""Detects a container's mounts, other than ours, that expose grants, the library or NRI's socket.

Pure: the text of /proc/PID/mountinfo is an argument. The paths in a pod's manifest do not suffice,
because links, subPaths and other mounts may lead elsewhere. The kernel's mount table is exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from gpuslice.contract import names
from nri_plugin.policy.places import is_below, normal

_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_OPTIONAL_FIELDS_END: Final = "-"


@dataclass(frozen=True, slots=True)
class Location:
    """A file or directory, by its file system's device and its path in that file system (root)."""

    device: str
    root: str


@dataclass(frozen=True, slots=True)
class Line:
    """One mount. root: the mounted directory or file in its file system. point: the mount point.
    shared: later mounts below it propagate to other namespaces. number, parent: the kernel's IDs of
    the mount, and of the mount on which it is mounted."""

    device: str
    root: str
    point: str
    writable: bool
    type: str
    source: str
    shared: bool
    number: str = ""
    parent: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """What containers must not reach, None if not known. run_dir: the grants' directory. store: the
    library's directory. socket: NRI's socket, through which a program can undo any adjustment."""

    run_dir: Location | None
    store: Location | None
    socket: Location | None = None


def parse(text: str) -> Iterator[Line]:
    """Yield the lines of a mountinfo file. Malformed lines are skipped."""
    for line in text.splitlines():
        fields = line.split(" ")
        try:
            after = fields.index(_OPTIONAL_FIELDS_END, 6)
            number, parent, device, root, point, options, *_ = fields
            kind, source = fields[after + 1 : after + 3]
        except ValueError:
            continue
        writable = "rw" in options.split(",")
        shared = any(field.startswith("shared:") for field in fields[6:after])
        places = _plain(root), _plain(point)
        yield Line(device, *places, writable, kind, _plain(source), shared, number, parent)


def location_of(lines: Sequence[Line], path: str) -> Location | None:
    """Locate a path without links. lines: the mount table of the process that uses the path."""
    best = None
    for line in lines:
        deepest = best is None or len(line.point) >= len(best.point)
        if deepest and (path == line.point or is_below(path, line.point)):
            best = line
    if best is None:
        return None
    return Location(best.device, normal(f"{best.root}/{path[len(best.point) :]}"))


class Visible:
    """What a program with this mount table finds at paths, as the kernel does: from the root, mount
    by mount. `location_of` also finds a mount that another one hides."""

    def __init__(self, lines: Sequence[Line]) -> None:
        mounted = [line for line in lines if line.parent != line.number]
        self._upper = {(line.parent, line.point): line for line in mounted}
        numbers = {line.number for line in mounted}
        roots = (line for line in lines if line.point == "/" and line.parent not in numbers)
        self._root = next(roots, None)

    def at(self, path: str) -> Location | None:
        """Locate what is at a path without links. None: there is no root."""
        current = self._root
        if current is None:
            return None
        parts = path.strip("/").split("/") if path != "/" else []
        for depth in range(len(parts) + 1):
            place = "/" + "/".join(parts[:depth])
            while upper := self._upper.get((current.number, place)):
                current = upper
        return Location(current.device, normal(f"{current.root}/{path[len(current.point) :]}"))


def shown(lines: Sequence[Line], ours: AbstractSet[str], limits: Limits) -> str:
    """Return the mount point of a mount that exposes what `limits` names, or "".

    ours: the mount points of our own mounts, which are skipped. A mount of the run directory would
    also expose later grants. A read-only mount of the library is allowed.
    """
    for line in lines:
        if line.point not in ours and _shows_limits(line, limits):
            return line.point
    return ""


def _shows_limits(line: Line, limits: Limits) -> bool:
    grants = (line.type, line.source) == ("tmpfs", names.PLUGIN_NAME)
    return (
        grants
        or _shows(line, limits.run_dir)
        or _shows(line, limits.socket)
        or (line.writable and _shows(line, limits.store))
    )


def _shows(line: Line, location: Location | None) -> bool:
    """Whether the mount contains the location or a part of it."""
    if location is None or line.device != location.device:
        return False
    return (
        line.root == location.root
        or is_below(location.root, line.root)
        or is_below(line.root, location.root)
    )


def _plain(field: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), field)
