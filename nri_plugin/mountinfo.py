"""What a container's mounts show of the host's files of limits, beside what we mounted ourselves.

Pure: the text of /proc/PID/mountinfo in. A path in a pod's manifest says little of where it leads
on the host, through links and other mounts; what the kernel mounted for it says all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from contract import names
from nri_plugin.injection import is_below

_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_OPTIONAL_FIELDS_END: Final = "-"


@dataclass(frozen=True, slots=True)
class Line:
    """One mount. root: the part of the file system that it shows; point: where."""

    device: str
    root: str
    point: str
    writable: bool
    type: str
    source: str


def parse(text: str) -> Iterator[Line]:
    """Its lines; one that is not of the kernel's form is left out."""
    for line in text.splitlines():
        fields = line.split(" ")
        try:
            after = fields.index(_OPTIONAL_FIELDS_END, 6)
            _, _, device, root, point, options, *_ = fields
            kind, source = fields[after + 1 : after + 3]
        except ValueError:
            continue
        writable = "rw" in options.split(",")
        yield Line(device, _plain(root), _plain(point), writable, kind, _plain(source))


def shown(lines: Sequence[Line], ours: AbstractSet[str]) -> str:
    """Where in the container grants or the library can be reached past our mounts; empty: nowhere.

    ours: our own places. Grants lie on file systems that carry our name; the library in a directory
    of the host, which must not be writable anywhere.
    """
    library = next((line for line in lines if line.point == names.CONTAINER_LIBRARY), None)
    for line in lines:
        grants = (line.type, line.source) == ("tmpfs", names.PLUGIN_NAME)
        if line.point not in ours and (grants or _holds(line, library)):
            return line.point
    return ""


def _holds(line: Line, library: Line | None) -> bool:
    """Whether the library could be written there."""
    if library is None or line.device != library.device or not line.writable:
        return False
    return line.root == library.root or is_below(library.root, line.root)


def _plain(field: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), field)
