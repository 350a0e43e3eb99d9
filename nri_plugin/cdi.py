"""CDI specs of this node's cards, read from directories into plain values.

Holds the reading of the Container Device Interface, versions 0.3 to 1.x, for one kind of device.
Decides nothing: what cannot be used as described becomes a problem of its device, what cannot be
read at all a problem of the whole, and the policy refuses only who asked for it.
Source: github.com/cncf-tags/container-device-interface SPEC.md. Later directories outrank earlier
ones; a device that is twice in one directory is unusable.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import yaml

from contract import names
from nri_plugin.model import CdiDevice, Device, Edits, Hook, HookStage, Mount, Specs

_MAX_BYTES: Final = 4 << 20
_YAML: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SHOWN_CHARS: Final = 200
SUFFIXES: Final = (".json", ".yaml", ".yml")
_STAGES: Final = {stage.value: stage for stage in HookStage}
_UNSUPPORTED: Final = ("additionalGids", "intelRdt", "netDevices")
"""Edits that an NRI adjustment cannot carry to every runtime that we run on."""
_DEFAULT_MOUNT_OPTIONS: Final = ("ro", "nosuid", "nodev", "rbind", "rprivate")

Stat = Callable[[str], os.stat_result]


class SpecError(Exception):
    """One spec or device is not as the format says; the text names the field."""


def load(directories: Iterable[Path], kind: str = names.CDI_KIND, status: Stat = os.stat) -> Specs:
    """Every device of `kind`. Reads files: call it from a worker thread.

    status: looks at a device node of the host, where the spec leaves its numbers out.
    """
    devices: dict[str, CdiDevice] = {}
    problems: list[str] = []
    for directory in directories:
        here: dict[str, CdiDevice] = {}
        for path in spec_files(directory, problems):
            try:
                found = _read_spec(path, kind, status)
            except (SpecError, OSError, ValueError, RecursionError) as error:
                problems.append(f"{path}: {error}")
                continue
            for device in found:
                twice = here.get(device.name)
                here[device.name] = device if twice is None else _doubled(device, twice)
        devices.update(here)
    return Specs(devices, tuple(problems))


def _doubled(device: CdiDevice, other: CdiDevice) -> CdiDevice:
    return CdiDevice(device.name, device.file, problem=f"it is also defined in {other.file}")


def spec_files(directory: Path, problems: list[str]) -> Sequence[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.suffix in SUFFIXES)
    except FileNotFoundError:
        return ()
    except OSError as error:
        problems.append(f"{directory}: {error.strerror}")
        return ()


def state(found: os.stat_result) -> tuple[int, ...]:
    """Of a file, what tells whether it is still the one that was read."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@lru_cache(maxsize=64)
def _parse(path: Path, _as_of: tuple[int, ...]) -> Any:
    """The document as it stood then: nvidia-ctk's YAML is long, and every container asks."""
    data = path.read_bytes()
    parsed = json.loads(data) if path.suffix == ".json" else _from_yaml(data)
    if _expands_over(_MAX_BYTES, parsed):
        raise SpecError(f"more than {_MAX_BYTES} characters with its aliases expanded")
    return parsed


def _from_yaml(data: bytes) -> Any:
    try:
        return yaml.load(data, Loader=_YAML)
    except Exception as error:  # of a tagged scalar, whatever PyYAML's parsing of it meets
        raise SpecError(f"not YAML: {error!r}") from error


def _expands_over(most: int, parsed: object) -> bool:
    """Whether it is larger than its file may be: an alias is short, and may stand for anything."""
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
    """What a spec file holds. Raises SpecError, OSError, ValueError or RecursionError."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_BYTES:
        raise SpecError(f"not a file of at most {_MAX_BYTES} bytes")
    return _parse(path, state(found))


def _read_spec(path: Path, kind: str, status: Stat) -> Sequence[CdiDevice]:
    spec = _object("the spec", document(path))
    if spec.get("kind") != kind:
        return ()
    version = _string("cdiVersion", spec.get("cdiVersion"))
    if version.partition(".")[0] not in {"0", "1"}:
        raise SpecError(f"cdiVersion {_shown(version)}, this agent reads 0.3 to 1.x")
    common, common_problem = _try_edits("containerEdits", spec.get("containerEdits"), status)
    devices = []
    for index, raw in enumerate(_list("devices", spec.get("devices"))):
        where = f"devices[{index}]"
        entry = _object(where, raw)
        name = _string(f"{where}.name", entry.get("name"))
        own, problem = _try_edits(f"{where}.containerEdits", entry.get("containerEdits"), status)
        devices.append(CdiDevice(name, str(path), own, common, problem or common_problem))
    return devices


def _try_edits(where: str, raw: object, status: Stat) -> tuple[Edits, str | None]:
    """The edits, or why they cannot be used; one broken card leaves the others usable."""
    try:
        return _edits(where, raw, status), None
    except SpecError as error:
        return Edits(), str(error)


def _edits(where: str, raw: object, status: Stat) -> Edits:
    edits = _object(where, {} if raw is None else raw)
    for name in _UNSUPPORTED:
        if edits.get(name):
            raise SpecError(f"{where}.{name} is not supported")

    def each(field: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
        for index, item in enumerate(_list(f"{where}.{field}", edits.get(field))):
            place = f"{where}.{field}[{index}]"
            yield place, _object(place, item)

    return Edits(
        env=tuple(_variable(f"{where}.env", v) for v in _list(f"{where}.env", edits.get("env"))),
        devices=tuple(_device(place, item, status) for place, item in each("deviceNodes")),
        mounts=tuple(_mount(place, item) for place, item in each("mounts")),
        hooks=tuple(_hook(place, item) for place, item in each("hooks")),
    )


def _variable(where: str, raw: object) -> tuple[str, str]:
    key, equals, value = _string(where, raw).partition("=")
    if not key or not equals:
        raise SpecError(f"{where}: {_shown(raw)}, expected KEY=VALUE")
    return key, value


def _device(where: str, raw: Mapping[str, Any], status: Stat) -> Device:
    path = _absolute(f"{where}.path", raw.get("path"))
    kind, major, minor = raw.get("type"), raw.get("major"), raw.get("minor")
    if not kind or major is None or minor is None:
        # nvidia-ctk writes the path alone: the numbers are those of the host's node, today.
        kind, major, minor = _numbers(where, str(raw.get("hostPath") or path), status)
    return Device(
        path,
        _string(f"{where}.type", kind),
        _whole(f"{where}.major", major) or 0,
        _whole(f"{where}.minor", minor) or 0,
        _whole(f"{where}.fileMode", raw.get("fileMode")),
        _whole(f"{where}.uid", raw.get("uid")),
        _whole(f"{where}.gid", raw.get("gid")),
    )


def _numbers(where: str, path: str, status: Stat) -> tuple[str, int, int]:
    try:
        node = status(path)
    except OSError as error:
        raise SpecError(f"{where}: {path}: {error.strerror}") from error
    for test, kind in ((stat.S_ISCHR, "c"), (stat.S_ISBLK, "b")):
        if test(node.st_mode):
            return kind, os.major(node.st_rdev), os.minor(node.st_rdev)
    raise SpecError(f"{where}: {path} is not a device node")


def _mount(where: str, raw: Mapping[str, Any]) -> Mount:
    options = _list(f"{where}.options", raw.get("options"))
    return Mount(
        _absolute(f"{where}.containerPath", raw.get("containerPath")),
        _absolute(f"{where}.hostPath", raw.get("hostPath")),
        tuple(_string(f"{where}.options", o) for o in options) or _DEFAULT_MOUNT_OPTIONS,
        _string(f"{where}.type", raw.get("type") or "bind"),
    )


def _hook(where: str, raw: Mapping[str, Any]) -> Hook:
    name = _string(f"{where}.hookName", raw.get("hookName"))
    if name not in _STAGES:
        raise SpecError(f"{where}.hookName: {_shown(name)}, allowed are {', '.join(_STAGES)}")
    return Hook(
        _STAGES[name],
        _absolute(f"{where}.path", raw.get("path")),
        tuple(_string(f"{where}.args", a) for a in _list(f"{where}.args", raw.get("args"))),
        tuple(_string(f"{where}.env", v) for v in _list(f"{where}.env", raw.get("env"))),
        _whole(f"{where}.timeout", raw.get("timeout")),
    )


def _shown(raw: object) -> str:
    return repr(raw)[:_SHOWN_CHARS]


def _object(where: str, raw: object) -> Mapping[str, Any]:
    if not isinstance(raw, dict):
        raise SpecError(f"{where}: expected an object, got {type(raw).__name__}")
    return raw


def _list(where: str, raw: object) -> Sequence[Any]:
    if raw is None:
        return ()
    if not isinstance(raw, list):
        raise SpecError(f"{where}: expected a list, got {type(raw).__name__}")
    return raw


def _string(where: str, raw: object) -> str:
    if not isinstance(raw, str) or not raw:
        raise SpecError(f"{where}: {_shown(raw)}, expected a text")
    return raw


def _absolute(where: str, raw: object) -> str:
    path = _string(where, raw)
    if not path.startswith("/"):
        raise SpecError(f"{where}: {_shown(path)}, expected an absolute path")
    return path


def _whole(where: str, raw: object) -> int | None:
    if raw is None:
        return None
    if not isinstance(raw, int) or isinstance(raw, bool) or raw < 0:
        raise SpecError(f"{where}: {_shown(raw)}, expected a whole number")
    return raw
