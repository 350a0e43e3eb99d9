"""Namespaces that act as a separate machine for a command, so that leftovers can be listed exactly.

    python -m tests.e2e.alone COMMAND...

Only the command has processes, mounts or interfaces in its namespaces; /tmp and /dev/shm begin
empty; writes elsewhere go into layers that machine.py reads. All of it is removed at the end; the
next run removes what a killed one left on disk. The kernel's settings that have no namespace, and
the cgroups, are still shared with the host.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lab.node.namespace import Namespace, NamespaceError, environment
from tests.e2e.machine import FRESH, LAYERS
from tests.support import ROOT
from tools.scratch import scratch

_COVERED: Final = ("/etc", "/home", "/opt", "/root", "/run", "/srv", "/usr", "/var")
_PREFIX: Final = "gs-m-"
"""Short: sockets below it must fit."""
_LAYERS_AT: Final = "/media"
"""Path of the layers inside the machine, whose /tmp hides the directory that they are in."""


@contextmanager
def machine() -> Iterator[Namespace]:
    """The machine as described above; run commands in it with `environ()`."""
    with scratch(Path("/tmp"), _PREFIX) as parent:
        made = Namespace(own_network=True, parent=parent)
        try:
            for place in (*_COVERED, *_home()):
                if Path(place).is_dir():
                    made.cover(Path(place))
            layers = made.directory / "root"
            _mount(made, "--bind", layers, _LAYERS_AT)
            for place in FRESH:
                fresh = layers / f"fresh{place.replace('/', '-')}"
                fresh.mkdir()
                fresh.chmod(0o1777)
                _mount(made, "--bind", fresh, place)
            yield made
        finally:
            made.close()  # its holder does not see the directory any more: scratch removes it


def environ() -> dict[str, str]:
    return environment({LAYERS: _LAYERS_AT, "TMPDIR": "/tmp"})


def run(command: Sequence[str], output: int | None = None) -> subprocess.CompletedProcess[str]:
    """output: subprocess' value for standard output."""
    with machine() as made:
        return subprocess.run(
            made.enter(command), env=environ(), cwd=ROOT, stdout=output, text=True, check=False
        )


def _home() -> Sequence[str]:
    """The home directory, unless it is below one of the usual ones."""
    home = os.path.realpath(os.path.expanduser("~"))
    return () if any(f"{home}/".startswith(f"{place}/") for place in _COVERED) else (home,)


def _mount(made: Namespace, *arguments: str | Path) -> None:
    done = made.run(["mount", *arguments])
    if done.returncode != 0:
        raise NamespaceError(f"mount {' '.join(map(str, arguments))}: {done.stderr.strip()}")


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]).returncode)
