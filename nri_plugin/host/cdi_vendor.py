"""Determines from this host's specs which CDI names inject a GPU, and the driver's major numbers.

Used for the names that device plugins and other NRI plugins request. Any CDI device injects a GPU
if its edits contain a device node or a library of the driver. If a name's spec does not exist or
cannot be read, the name's vendor decides. Reads files: run it in a worker thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Final

from nri_plugin.host import cdi_reader
from nri_plugin.host.cdi_edits import SpecError, Stat
from nri_plugin.policy import nvidia
from nri_plugin.policy.places import normal
from nri_plugin.policy.refusals import raise_shortage

_DEVICES: Final = Path("/proc/devices")
_UNREADABLE: Final = (
    *(SpecError, OSError, ValueError, RecursionError),
    *(TypeError, AttributeError, KeyError),
)
"""Exceptions raised for a file that is no spec, or for an entry that violates the format."""


def by_name(
    directories: Iterable[Path], wanted: Sequence[str], status: Stat = os.stat
) -> AbstractSet[str]:
    """Return which of the `wanted` CDI names inject a GPU. If a name has several definitions, one
    with a GPU is enough. Raises Refused if the agent lacks memory or descriptors (a shortage)."""
    documents = list(_documents(directories)) if wanted else []
    return frozenset(name for name in wanted if _brings(name, documents, status))


def majors() -> AbstractSet[int]:
    """Return the major numbers that the kernel has currently assigned to the driver."""
    return nvidia.driver_majors(_DEVICES.read_text())


def _documents(directories: Iterable[Path]) -> Iterator[Any]:
    for directory in directories:
        for path in cdi_reader.spec_files(directory, []):
            try:
                yield cdi_reader.document(path)
            except _UNREADABLE as error:
                raise_shortage(error)


def _brings(name: str, documents: Iterable[Any], status: Stat) -> bool:
    kind, _, device = name.partition("=")
    known = undetermined = False
    for document in documents:
        try:
            for edits in _edits(document, kind, device):
                if _has_gpu(edits, status):
                    return True
                known = True
        except _UNREADABLE:
            undetermined = True
    return (undetermined or not known) and nvidia.is_of_vendor(name)


def _edits(spec: Any, kind: str, device: str) -> Iterator[Any]:
    """Yield the device's edits, and the spec's edits, which apply to all its devices."""
    if not isinstance(spec, dict) or spec.get("kind") != kind:
        return
    for entry in spec.get("devices") or ():
        if entry.get("name") == device:
            yield entry.get("containerEdits") or {}
            yield spec.get("containerEdits") or {}


def _has_gpu(edits: Any, status: Stat) -> bool:
    for node in edits.get("deviceNodes") or ():
        paths = [normal(node[key]) for key in ("path", "hostPath") if key in node]
        if any(nvidia.is_node(path, 0) for path in paths):
            return True
        if nvidia.is_node("", _major(node, status)):
            return True
    for mount in edits.get("mounts") or ():
        places = [normal(mount[key]) for key in ("hostPath", "containerPath")]
        if any(nvidia.is_node(place, 0) or nvidia.is_driver(place) for place in places):
            return True
    variables = (line.partition("=")[::2] for line in edits.get("env") or ())
    return any(nvidia.names_gpus(key, value) for key, value in variables)


def _major(node: Any, status: Stat) -> int:
    """Return a device node's major number from the spec, else from the host; 0 if not known."""
    if isinstance(major := node.get("major"), int) and major:
        return major
    try:
        return os.major(status(node.get("hostPath") or node["path"]).st_rdev)
    except OSError:
        return 0
