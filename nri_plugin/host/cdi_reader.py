"""Reads CDI specs of this node's GPUs into plain values, and again when a file changes.

Implements the Container Device Interface, versions 0.3 to 1.x, for some kinds of device. Makes no
decisions: unusable content becomes a problem of its device, an unreadable file a problem of the
whole set, and the policy refuses only containers that request the device.
Source: github.com/cncf-tags/container-device-interface SPEC.md. Later directories override earlier
ones; a device defined twice in one directory is unusable. If several kinds have a device of one
name, the first counts.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import yaml

from contract import names
from nri_plugin.policy.model import CdiDevice, Device, Edits, Hook, HookStage, Mount, Specs

_MAX_BYTES: Final = 4 << 20
_YAML: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SHOWN_CHARS: Final = 200
SUFFIXES: Final = (".json", ".yaml", ".yml")
_STAGES: Final = {stage.value: stage for stage in HookStage}
_UNSUPPORTED: Final = ("additionalGids", "intelRdt", "netDevices")
"""Edits that an NRI adjustment cannot express for every runtime that we support."""
_DEFAULT_MOUNT_OPTIONS: Final = ("ro", "nosuid", "nodev", "rbind", "rprivate")

Stat = Callable[[str], os.stat_result]


class Reader:
    """The specs of some directories. Every creation with a grant needs them while the runtime
    waits, so the result is cached while files and device nodes are unchanged. Belongs to one
    thread.
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
        self._nodes: dict[str, object] = {}
        self._specs = Specs()

    def load(self) -> Specs:
        files = [_listing(directory) for directory in self._directories]
        nodes = {path: _seen(self._status, path) for path in self._nodes}
        if files != self._files or nodes != self._nodes:
            self._files, self._nodes = files, {}
            self._specs = load(self._directories, self._kinds, self._record_status)
        return self._specs

    def _record_status(self, path: str) -> os.stat_result:
        self._nodes[path] = _seen(self._status, path)
        return self._status(path)


def _listing(directory: Path) -> object:
    try:
        there = [name for name in os.listdir(directory) if name.endswith(SUFFIXES)]
    except OSError as error:
        return error.errno
    return {name: _seen(os.stat, f"{directory}/{name}") for name in there}


def _seen(status: Stat, path: str) -> object:
    """Return a value that changes when the file or device node is replaced or modified."""
    try:
        found = status(path)
    except OSError as error:
        return error.errno
    return found.st_mode, found.st_rdev, state(found)


class SpecError(Exception):
    """One spec or device violates the format; the text names the field."""


def load(
    directories: Iterable[Path],
    kinds: Sequence[str] = names.CDI_KINDS,
    status: Stat = os.stat,
) -> Specs:
    """Return every device of these kinds. Reads files: call it from a worker thread.

    status: stat function for the host's device nodes, for numbers that the spec omits.
    """
    devices: dict[tuple[str, str], CdiDevice] = {}
    problems: list[str] = []
    for directory in directories:
        here: dict[tuple[str, str], CdiDevice] = {}
        for path in spec_files(directory, problems):
            try:
                found = _read_spec(path, kinds, status)
            except (SpecError, OSError, ValueError, RecursionError) as error:
                problems.append(f"{path}: {error}")
                continue
            for device in found:
                key = device.kind, device.name
                twice = here.get(key)
                here[key] = device if twice is None else _doubled(device, twice)
        devices.update(here)
    ranked = sorted(devices.values(), key=lambda device: -kinds.index(device.kind))
    return Specs({device.name: device for device in ranked}, tuple(problems))


def _doubled(device: CdiDevice, other: CdiDevice) -> CdiDevice:
    problem = f"duplicate name: {other.file} defines it too"
    others = (other.file, *other.also_in)
    return CdiDevice(device.name, device.file, problem=problem, kind=device.kind, also_in=others)


def spec_files(directory: Path, problems: list[str]) -> Sequence[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.suffix in SUFFIXES)
    except FileNotFoundError:
        return ()
    except OSError as error:
        problems.append(f"{directory}: {error.strerror}")
        return ()


def state(found: os.stat_result) -> tuple[int, ...]:
    """Return a value that changes when the file is replaced or modified."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@lru_cache(maxsize=64)
def _parse(path: Path, _as_of: tuple[int, ...]) -> Any:
    """Parse and cache: nvidia-ctk's YAML is long, and every container with a grant needs it."""
    data = path.read_bytes()
    parsed = json.loads(data) if path.suffix == ".json" else _from_yaml(data)
    if _expands_over(_MAX_BYTES, parsed):
        raise SpecError(f"too long: must be at most {_MAX_BYTES} characters with aliases expanded")
    return parsed


def _from_yaml(data: bytes) -> Any:
    try:
        return yaml.load(data, Loader=_YAML)
    except Exception as error:  # PyYAML's parsing of a tagged scalar may raise anything
        # A repr of PyYAML's own errors has addresses, and would differ at each inspection.
        why = str(error) if isinstance(error, yaml.YAMLError) else repr(error)
        raise SpecError(f"must be YAML: {' '.join(why.split())}") from error


def _expands_over(most: int, parsed: object) -> bool:
    """Whether the document exceeds the size limit: YAML aliases are short and may expand."""
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
    found = path.stat()
    if not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_BYTES:
        raise SpecError(f"must be a regular file of at most {_MAX_BYTES} bytes")
    return _parse(path, state(found))


def _read_spec(path: Path, kinds: Sequence[str], status: Stat) -> Sequence[CdiDevice]:
    spec = _Object("", document(path))
    kind = spec.raw.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        return ()
    version = spec.text("cdiVersion")
    if version.partition(".")[0] not in {"0", "1"}:
        raise SpecError(f"cdiVersion: invalid value {_shown(version)}: must be 0.3 to 1.x")
    common, common_problem = _try_edits(spec, status)
    devices = []
    for entry in spec.objects("devices"):
        own, problem = _try_edits(entry, status)
        name = entry.text("name")
        devices.append(CdiDevice(name, str(path), own, common, problem or common_problem, kind))
    return devices


def _try_edits(parent: _Object, status: Stat) -> tuple[Edits, str | None]:
    """Return the edits, or why they are unusable; one broken GPU leaves the others usable."""
    try:
        raw = parent.raw.get("containerEdits")
        edits = _Object(parent.at("containerEdits"), {} if raw is None else raw)
        for name in _UNSUPPORTED:
            if edits.raw.get(name):
                raise SpecError(f"{edits.at(name)}: not supported: remove it from the spec")
        return Edits(
            env=tuple(_variable(edits.at("env"), line) for line in edits.texts("env")),
            devices=tuple(_device(each, status) for each in edits.objects("deviceNodes")),
            mounts=tuple(map(_mount, edits.objects("mounts"))),
            hooks=tuple(map(_hook, edits.objects("hooks"))),
        ), None
    except SpecError as error:
        return Edits(), str(error)


def _variable(where: str, line: str) -> tuple[str, str]:
    key, equals, value = line.partition("=")
    if not key or not equals:
        raise SpecError(f"{where}: invalid value {_shown(line)}: must be KEY=VALUE")
    return key, value


def _device(node: _Object, status: Stat) -> Device:
    path, raw = node.path("path"), node.raw
    major, minor = node.whole("major"), node.whole("minor")
    if not raw.get("type") or major is None or minor is None:
        # nvidia-ctk writes only the path: the numbers are those of the host's node, now.
        kind, major, minor = _numbers(node.where, str(raw.get("hostPath") or path), status)
    else:
        kind = node.text("type")
    mode, uid, gid = map(node.whole, ("fileMode", "uid", "gid"))
    return Device(path, kind, major, minor, mode, uid, gid)


def _numbers(where: str, path: str, status: Stat) -> tuple[str, int, int]:
    try:
        node = status(path)
    except OSError as error:
        raise SpecError(f"{where}: {path}: {error.strerror}") from error
    for test, kind in ((stat.S_ISCHR, "c"), (stat.S_ISBLK, "b")):
        if test(node.st_mode):
            return kind, os.major(node.st_rdev), os.minor(node.st_rdev)
    raise SpecError(f"{where}: invalid value {path}: must be a device node")


def _mount(mount: _Object) -> Mount:
    return Mount(
        mount.path("containerPath"),
        mount.path("hostPath"),
        mount.texts("options") or _DEFAULT_MOUNT_OPTIONS,
        mount.text("type") if mount.raw.get("type") else "bind",
    )


def _hook(hook: _Object) -> Hook:
    name = hook.text("hookName")
    if name not in _STAGES:
        at = hook.at("hookName")
        raise SpecError(f"{at}: invalid value {_shown(name)}: must be one of {', '.join(_STAGES)}")
    args, env = hook.texts("args"), hook.texts("env")
    return Hook(_STAGES[name], hook.path("path"), args, env, hook.whole("timeout"))


def _shown(raw: object) -> str:
    return repr(raw)[:_SHOWN_CHARS]


class _Object:
    """A JSON object of a spec, and its location. Each method reads one field, and raises SpecError
    for a value of another type."""

    def __init__(self, where: str, raw: object) -> None:
        if not isinstance(raw, dict):
            place = where or "the spec"
            raise SpecError(f"{place}: invalid type {type(raw).__name__}: must be an object")
        self.where = where
        self.raw: Mapping[str, Any] = raw

    def at(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where else key

    def text(self, key: str) -> str:
        return self._text(key, self.raw.get(key))

    def path(self, key: str) -> str:
        path = self.text(key)
        if not path.startswith("/"):
            raise SpecError(
                f"{self.at(key)}: invalid value {_shown(path)}: must be an absolute path"
            )
        return path

    def whole(self, key: str) -> int | None:
        raw = self.raw.get(key)
        if raw is not None and (not isinstance(raw, int) or isinstance(raw, bool) or raw < 0):
            raise SpecError(f"{self.at(key)}: invalid value {_shown(raw)}: must be an integer >= 0")
        return raw

    def texts(self, key: str) -> Sequence[str]:
        return tuple(self._text(key, each) for each in self._list(key))

    def objects(self, key: str) -> Iterator[_Object]:
        for index, each in enumerate(self._list(key)):
            yield _Object(f"{self.at(key)}[{index}]", each)

    def _text(self, key: str, raw: object) -> str:
        if not isinstance(raw, str) or not raw:
            raise SpecError(f"{self.at(key)}: invalid value {_shown(raw)}: must be a string")
        return raw

    def _list(self, key: str) -> Sequence[Any]:
        raw = self.raw.get(key)
        if raw is None or isinstance(raw, list):
            return raw or ()
        raise SpecError(f"{self.at(key)}: invalid type {type(raw).__name__}: must be a list")
