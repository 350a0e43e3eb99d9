"""Reads CDI specs of this node's GPUs into plain values, and again when a file changes.

A device with unusable content gets a problem, and the policy refuses only containers that request
the device. An unreadable file becomes a problem of the whole result. A device overrides a device of
the same name in an earlier directory, unless only the earlier device is usable. A device that is
defined twice in one directory is unusable. If several kinds have a usable device of one name, the
first of these kinds counts.
Source: github.com/cncf-tags/container-device-interface SPEC.md, versions 0.3 to 1.x.
"""

from __future__ import annotations

import json
import os
import posixpath
import stat
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import yaml

from gpuslice.contract import names
from nri_plugin.host import cdi_edits
from nri_plugin.host.cdi_edits import SpecError, Stat
from nri_plugin.policy import nvidia
from nri_plugin.policy.model import CdiDevice, Edits, Specs
from nri_plugin.policy.refusals import raise_shortage

_MAX_BYTES: Final = 4 << 20
_YAML: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SUFFIXES: Final = (".json", ".yaml", ".yml")


class Reader:
    """The specs of some directories. Each container with a grant needs them while the runtime
    waits. Therefore the specs are cached until a spec changes, or a directory of the files that the
    specs name. Only one thread may use a Reader.
    """

    def __init__(
        self,
        directories: Iterable[Path],
        kinds: Sequence[str] = names.CDI_KINDS,
        status: Stat = os.stat,
    ) -> None:
        self._directories = tuple(directories)
        self._kinds = kinds
        self._status = status
        self._files: object = None
        self._host: dict[str, object] = {}
        self._specs = Specs()

    def load(self) -> Specs:
        files = [_listing(directory) for directory in self._directories]
        host = {path: _seen(self._status, path) for path in self._host}
        if files != self._files or host != self._host:
            self._files, self._host = files, {}
            self._specs = load(self._directories, self._kinds, self._record_status)
        return self._specs

    def _record_status(self, path: str) -> os.stat_result:
        """Return the file's status, and record its directory's status. Added and removed files
        change the directory. So a later check queries one directory, not all files.
        """
        place = posixpath.dirname(path)
        if place not in self._host:
            self._host[place] = _seen(self._status, place)
        return self._status(path)


def _listing(directory: Path) -> object:
    try:
        return {name: _seen(os.stat, f"{directory}/{name}") for name in _spec_names(directory)}
    except OSError as error:
        return error.errno


def _spec_names(directory: Path) -> Sequence[str]:
    """Return the names of spec files. Those of claims inject no GPU, and change with each pod."""
    there = (name for name in os.listdir(directory) if name.endswith(_SUFFIXES))
    return sorted(name for name in there if not name.startswith(names.CDI_FILE_CLAIM))


def _seen(status: Stat, path: str) -> object:
    """Return a value that changes whenever the file or device node is replaced or modified."""
    try:
        seen = status(path)
    except OSError as error:
        return error.errno
    return seen.st_mode, seen.st_rdev, state(seen)


def load(
    directories: Iterable[Path], kinds: Sequence[str] = names.CDI_KINDS, status: Stat = os.stat
) -> Specs:
    """Return every device of these kinds. status: stat function for the host's files and nodes.
    Blocks: call it from a worker. Raises Refused if the agent lacks memory or descriptors."""
    devices: dict[tuple[str, str], CdiDevice] = {}
    problems: list[str] = []
    for directory in directories:
        here: dict[tuple[str, str], CdiDevice] = {}
        for path in spec_files(directory, problems):
            try:
                listed = _read_spec(path, kinds, status)
            except (SpecError, OSError, ValueError, RecursionError) as error:
                raise_shortage(error)
                problems.append(f"{path}: {error}")
                continue
            for device in listed:
                key = device.kind, device.name
                twice = here.get(key)
                here[key] = device if twice is None else _doubled(device, twice)
        for key, device in here.items():
            if device.problem is None or key not in devices or devices[key].problem is not None:
                devices[key] = device

    def rank(device: CdiDevice) -> tuple[bool, int]:
        return device.problem is None, -kinds.index(device.kind)

    ranked = sorted(devices.values(), key=rank)
    return Specs({device.name: device for device in ranked}, tuple(problems))


def _doubled(device: CdiDevice, other: CdiDevice) -> CdiDevice:
    problem = f"duplicate name: {other.file} defines it too"
    others = (other.file, *other.also_in)
    return CdiDevice(device.name, device.file, problem=problem, kind=device.kind, also_in=others)


def spec_files(directory: Path, problems: list[str]) -> Sequence[Path]:
    try:
        return [directory / name for name in _spec_names(directory)]
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise_shortage(error)
        problems.append(f"{directory}: {error.strerror}")
        return ()


def state(status: os.stat_result) -> tuple[int, ...]:
    """Return a value that changes whenever the file is replaced or modified."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


@lru_cache(maxsize=64)
def _parse(path: Path, _as_of: tuple[int, ...]) -> Any:
    """Parse a spec. The result is cached, because nvidia-ctk's YAML is long and often needed."""
    data = path.read_bytes()
    parsed = json.loads(data) if path.suffix == ".json" else _from_yaml(data)
    if _expands_over(_MAX_BYTES, parsed):
        raise SpecError(f"too long: must be at most {_MAX_BYTES} characters with aliases expanded")
    return parsed


def _from_yaml(data: bytes) -> Any:
    try:
        return yaml.load(data, Loader=_YAML)
    except Exception as error:  # PyYAML's parsing of a tagged scalar may raise anything
        # The repr of PyYAML's own errors contains addresses: each inspection would show a new text.
        why = str(error) if isinstance(error, yaml.YAMLError) else repr(error)
        raise SpecError(f"must be YAML: {' '.join(why.split())}") from error


def _expands_over(most: int, parsed: object) -> bool:
    """Return whether the document has over `most` characters once YAML's aliases are expanded."""
    left = [parsed]
    while left:
        value = left.pop()
        most -= 1 + (len(value) if isinstance(value, str) else 0)
        if most < 0:
            return True
        if isinstance(value, dict):
            left += (*value.keys(), *value.values())
        elif isinstance(value, list):
            left += value
    return False


def document(path: Path) -> Any:
    """Return a spec file's content. Raises SpecError, OSError, ValueError or RecursionError."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
        raise SpecError(f"must be a regular file of at most {_MAX_BYTES} bytes")
    return _parse(path, state(status))


def _read_spec(path: Path, kinds: Sequence[str], status: Stat) -> Sequence[CdiDevice]:
    spec = cdi_edits.Object("", document(path))
    kind = spec.raw.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        return ()
    version = spec.text("cdiVersion")
    if version.partition(".")[0] not in {"0", "1"}:
        raise SpecError(f"cdiVersion: invalid value {version[:20]!r}: must be 0.3 to 1.x")
    common, common_gids, common_problem = _try_edits(spec, status)
    devices = []
    for entry in spec.objects("devices"):
        own, gids, problem = _try_edits(entry, status)
        gids |= common_gids
        own, shared = (cdi_edits.opened(each, gids) for each in (own, common))
        problem = problem or common_problem or _lacking(own, common)
        devices.append(CdiDevice(entry.text("name"), str(path), own, shared, problem, kind))
    return devices


def _try_edits(
    parent: cdi_edits.Object, status: Stat
) -> tuple[Edits, AbstractSet[int], str | None]:
    """Return the edits and groups, or why they are unusable. No error is raised, so that a broken
    device does not affect other devices."""
    try:
        return *cdi_edits.parse(parent, status), None
    except SpecError as error:
        return Edits(), frozenset(), str(error)


def _lacking(*edits: Edits) -> str | None:
    nodes = nvidia.lacking_nodes([device.path for each in edits for device in each.devices])
    if not nodes:
        return None
    return (
        f"deviceNodes: must contain {' and '.join(nodes)}, without which no program can compute on"
        f" the GPU; load the driver's modules and create its device nodes: {nvidia.CREATE_NODES}"
    )
