"""Detects container mounts, other than ours, that expose the host's grants or the library.

Pure: takes the text of /proc/PID/mountinfo. A path in a pod's manifest does not show where it leads
on the host, because of links, subPaths and other mounts; the kernel's mount table does.
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
    """A file or directory, in a form common to all mounts of its file system. root: as in Line."""

    device: str
    root: str


@dataclass(frozen=True, slots=True)
class Line:
    """One mount. root: the part of the file system that it shows; point: where. shared: whether
    later mounts below it reach other namespaces."""

    device: str
    root: str
    point: str
    writable: bool
    type: str
    source: str
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """Host locations of the grants, the library and NRI's socket; None: not known. socket: where
    NRI's plugins connect. A program that connects can undo any adjustment."""

    run_dir: Location | None
    store: Location | None
    socket: Location | None = None


def parse(text: str) -> Iterator[Line]:
    """Yield its lines; malformed ones are skipped."""
    for line in text.splitlines():
        fields = line.split(" ")
        try:
            after = fields.index(_OPTIONAL_FIELDS_END, 6)
            _, _, device, root, point, options, *_ = fields
            kind, source = fields[after + 1 : after + 3]
        except ValueError:
            continue
        writable = "rw" in options.split(",")
        shared = any(field.startswith("shared:") for field in fields[6:after])
        yield Line(device, _plain(root), _plain(point), writable, kind, _plain(source), shared)


def location_of(lines: Sequence[Line], path: str) -> Location | None:
    """Locate a path by the mount table of the process that uses it; no component is a link."""
    best = None
    for line in lines:
        deepest = best is None or len(line.point) >= len(best.point)
        if deepest and (path == line.point or is_below(path, line.point)):
            best = line
    if best is None:
        return None
    return Location(best.device, normal(f"{best.root}/{path[len(best.point) :]}"))


def shown(lines: Sequence[Line], ours: AbstractSet[str], limits: Limits) -> str:
    """Return a mount other than ours that exposes grants or the library; "": none.

    ours: our own mount points. The file systems of grants have our name, and future ones may appear
    wherever the run directory is visible. The store must not be writable anywhere.
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
    """Whether the mount shows the location or a part of it."""
    if location is None or line.device != location.device:
        return False
    return (
        line.root == location.root
        or is_below(location.root, line.root)
        or is_below(line.root, location.root)
    )


def _plain(field: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), field)
