"""Large inputs for the rows of sizes: a GPU whose CDI spec has many mounts, and pods with much
metadata.

NRI messages are at most 4 MiB, and its multiplexer splits them into frames in only one way. A
plugin that violates either loses its connection.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lab import pages
from lab.node.cri import Container
from lab.node.lab import LabError

_MOUNTS: Final = 1550
_PLACE: Final = "/opt/large"
_DETOUR: Final = "/." * 970
"""Lengthens a host path without changing its target. Paths in the container are short: validating
plugins receive them a second time, as the list of owned fields, and that message must fit too."""

PODS: Final = 6
ANNOTATION: Final[Mapping[str, str]] = {"example.com/large": "x" * 900_000}
_SYNCHRONIZED: Final = "gpuslice_nri_synchronize_pods "


@contextmanager
def many_mounts(specs: Path) -> Iterator[None]:
    """The node's CDI specs, with so many mounts per GPU that an answer has 3 MB."""
    (spec,) = specs.iterdir()
    before = spec.read_bytes()
    document = json.loads(before)
    mounts = [
        {
            "hostPath": f"{_DETOUR}{spec}",
            "containerPath": f"{_PLACE}/{index:05}",
            "options": ["bind", "ro"],
        }
        for index in range(_MOUNTS)
    ]
    document["containerEdits"]["mounts"] += mounts
    spec.write_text(json.dumps(document))
    try:
        yield
    finally:
        spec.write_bytes(before)


def check(container: Container) -> None:
    """Checks that everything is in the container. Raises LabError."""
    count = container.exec(["sh", "-c", f"ls {_PLACE} | grep -c ."]).out.strip()
    if count != str(_MOUNTS):
        raise LabError(f"{count} of {_MOUNTS} mounts are in the container")


def synchronized(agent: Path) -> int:
    """The number of pods in the agent's last Synchronize, from its metrics."""
    lines = pages.get(agent, "/metrics")[1].splitlines()
    return next(int(float(line.split()[1])) for line in lines if line.startswith(_SYNCHRONIZED))
