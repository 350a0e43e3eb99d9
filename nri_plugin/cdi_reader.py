"""CDI specs for one container after the other: read once, and looked at each time.

Every creation with a grant asks for them, and the runtime waits meanwhile. What was read last is
given again while the directories hold the same files, and the host's device nodes
that were looked at are still what they were.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from contract import names
from nri_plugin import cdi
from nri_plugin.model import Specs


class Reader:
    """The specs of some directories. Belongs to one thread."""

    def __init__(
        self, directories: Iterable[Path], kind: str = names.CDI_KIND, status: cdi.Stat = os.stat
    ) -> None:
        self._directories = tuple(directories)
        self._kind = kind
        self._status = status
        self._seen: Sequence[object] = ()
        self._loaded = False
        self._nodes: dict[str, object] = {}
        self._specs = Specs()

    def load(self) -> Specs:
        files = tuple(_listing(directory) for directory in self._directories)
        nodes = {path: _node(self._status, path) for path in self._nodes}
        if not self._loaded or files != self._seen or nodes != self._nodes:
            self._nodes = {}
            self._specs = cdi.load(self._directories, self._kind, self._looked_at)
            self._seen = files
            self._loaded = True
        return self._specs

    def _looked_at(self, path: str) -> os.stat_result:
        self._nodes[path] = _node(self._status, path)
        return self._status(path)


def _listing(directory: Path) -> object:
    """What tells whether a directory's specs are those of before."""
    try:
        names_there = [name for name in os.listdir(directory) if name.endswith(cdi.SUFFIXES)]
    except OSError as error:
        return error.errno
    return {name: _file(directory / name) for name in names_there}


def _file(path: Path) -> object:
    try:
        return cdi.state(path.stat())
    except OSError as error:
        return error.errno


def _node(status: cdi.Stat, path: str) -> object:
    try:
        found = status(path)
    except OSError as error:
        return error.errno
    return found.st_mode, found.st_rdev
