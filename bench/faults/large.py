"""What is large in the rows of sizes: a GPU whose CDI spec mounts much, and pods that say much.

Messages of NRI are at most 4 MiB, and are cut into frames in one way only (facts of its
multiplexer): a plugin that is careless with either loses its connection.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from simgpu.lab.cri import Container
from simgpu.lab.lab import LabError

ANSWER_BYTES: Final = 3_000_000
_MOUNTS: Final = 1550
_PLACE: Final = "/opt/large"
_DETOUR: Final = "/." * 970
"""Makes a path of the host long, and leads nowhere else. Paths in the container are short: where
plugins validate they are repeated, as what each plugin owns, and that message too must fit."""

PODS: Final = 6
ANNOTATION: Final[Mapping[str, str]] = {"example.com/large": "x" * 900_000}
_SYNCHRONIZED: Final = "gpuslice_nri_synchronize_pods "


@contextmanager
def many_mounts(specs: Path) -> Iterator[None]:
    """The node's CDI specs, with so many mounts for any GPU that an answer has ANSWER_BYTES."""
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
    told = sum(len(mount["hostPath"]) + len(mount["containerPath"]) for mount in mounts)
    assert told > ANSWER_BYTES
    document["containerEdits"]["mounts"] += mounts
    spec.write_text(json.dumps(document))
    try:
        yield
    finally:
        spec.write_bytes(before)


def check(container: Container) -> None:
    """That all of it is in the container. Raises LabError."""
    count = container.exec(["sh", "-c", f"ls {_PLACE} | grep -c ."]).out.strip()
    if count != str(_MOUNTS):
        raise LabError(f"{count} of {_MOUNTS} mounts are in the container")


def synchronized(agent: Path) -> int:
    """How many pods the agent was told of at its last Synchronize, from its metrics."""
    connection = http.client.HTTPConnection("localhost", timeout=30)
    connection.sock = socket.socket(socket.AF_UNIX)
    with contextlib.closing(connection):
        connection.sock.connect(str(agent))
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    return next(int(float(line.split()[1])) for line in lines if line.startswith(_SYNCHRONIZED))
