"""Converts the edits of a CDI spec to plain values, according to the files that the host has now.

Implements containerEdits of the Container Device Interface, versions 0.3 to 1.x. Invariant: a field
that no program needs in order to compute on the GPU never makes the GPU unusable. If the host lacks
a file or device node, a dispensable one is omitted, and any other is an error. Fields that an
adjustment cannot express on every runtime are ignored, except additionalGids (see `opened`).
Source: github.com/cncf-tags/container-device-interface SPEC.md, specs-go/config.go.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, Final

from nri_plugin.policy import capabilities, nvidia
from nri_plugin.policy.model import Device, Edits, Hook, HookStage, Mount

Stat = Callable[[str], os.stat_result]

_SHOWN_CHARS: Final = 200
_STAGES: Final = {stage.value: stage for stage in HookStage}
_DEFAULT_MOUNT_OPTIONS: Final = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_PERMISSIONS: Final = 0o7777


class SpecError(Exception):
    """A spec or device violates the format. The text names the field."""


def parse(parent: Object, status: Stat) -> tuple[Edits, AbstractSet[int]]:
    """Return the edits, and the groups (additionalGids) that they add to the container's processes.
    status: stat function for the host's files. Raises SpecError."""
    raw = parent.raw.get("containerEdits")
    edits = Object(parent.at("containerEdits"), {} if raw is None else raw)
    gids = edits.raw.get("additionalGids")
    return Edits(
        env=tuple(_variable(edits.at("env"), line) for line in edits.texts("env")),
        devices=tuple(_devices(edits.objects("deviceNodes"), status)),
        mounts=tuple(_mounts(edits.objects("mounts"), status)),
        hooks=tuple(map(_hook, edits.objects("hooks"))),
    ), frozenset(gid for gid in gids if isinstance(gid, int)) if isinstance(gids, list) else set()


def opened(edits: Edits, gids: AbstractSet[int]) -> Edits:
    """Give all users the rights that these groups have on the device nodes, because NRI cannot add
    groups to processes. The result is the same as with the groups: the device nodes are the
    container's own, and each of its processes would be in the groups."""
    return replace(
        edits,
        devices=tuple(
            device._replace(file_mode=device.file_mode | (device.file_mode >> 3 & 0o7))
            if device.gid in gids and device.file_mode is not None
            else device
            for device in edits.devices
        ),
    )


def _variable(where: str, line: str) -> tuple[str, str]:
    key, equals, value = line.partition("=")
    if not key or not equals:
        raise SpecError(f"{where}: invalid value {_shown(line)}: must be KEY=VALUE")
    return key, value


def _devices(nodes: Iterator[Object], status: Stat) -> Iterator[Device]:
    for node in nodes:
        path, raw = node.path("path"), node.raw
        place = node.path("hostPath") if raw.get("hostPath") else path
        mode, uid, gid = map(node.whole, ("fileMode", "uid", "gid"))
        try:
            kind, major, minor = _numbers(place, status)
        except OSError as error:
            if nvidia.is_needed_node(path):
                raise SpecError(f"{node.where}: {place}: {error.strerror}") from error
            at = node.whole("major"), node.whole("minor")
            if at[0] is None or at[1] is None or not raw.get("type"):
                continue
            kind, major, minor = node.text("type"), at[0], at[1]
        permissions = mode if mode is None else mode & _PERMISSIONS
        yield Device(path, kind, major, minor, permissions, uid, gid)


def _numbers(path: str, status: Stat) -> tuple[str, int, int]:
    """Return type, major and minor of the host's device node. A spec of nvidia-ctk may have only
    the path, and the driver's numbers may change at each boot."""
    node = _found(status, path)
    kind = "c" if stat.S_ISCHR(node.st_mode) else "b" if stat.S_ISBLK(node.st_mode) else None
    if kind is None:
        raise OSError(errno.ENODEV, "must be a device node", path)
    return kind, os.major(node.st_rdev), os.minor(node.st_rdev)


def _found(status: Stat, path: str) -> os.stat_result:
    """Call `status`. Raises OSError even for a path that no file can have (with a NUL)."""
    try:
        return status(path)
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error), path) from error


def _mounts(mounts: Iterator[Object], status: Stat) -> Iterator[Mount]:
    for mount in mounts:
        place = mount.path("containerPath")
        kind = mount.text("type") if mount.raw.get("type") else "bind"
        if kind != "bind":
            yield Mount(place, mount.text("hostPath"), _options(mount), kind)
            continue
        source = mount.path("hostPath")
        try:
            _found(status, source)
        except OSError as error:
            if capabilities.is_needed(place):
                raise SpecError(f"{mount.where}: {source}: {error.strerror}") from error
        else:
            yield Mount(place, source, _options(mount), kind)


def _options(mount: Object) -> Sequence[str]:
    return tuple(filter(None, mount.texts("options"))) or _DEFAULT_MOUNT_OPTIONS


def _hook(hook: Object) -> Hook:
    name = hook.text("hookName")
    if name not in _STAGES:
        at = hook.at("hookName")
        raise SpecError(f"{at}: invalid value {_shown(name)}: must be one of {', '.join(_STAGES)}")
    args, env = hook.texts("args"), hook.texts("env")
    return Hook(_STAGES[name], hook.path("path"), args, env, hook.whole("timeout"))


def _shown(raw: object) -> str:
    return repr(raw)[:_SHOWN_CHARS]


class Object:
    """A JSON object of a spec, and its location (`where`). A method that reads a field raises
    SpecError if the value is of the wrong type."""

    def __init__(self, where: str, raw: object) -> None:
        if not isinstance(raw, dict):
            place = where or "the spec"
            raise SpecError(f"{place}: invalid type {type(raw).__name__}: must be an object")
        self.where = where
        self.raw: Mapping[str, Any] = raw

    def at(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where else key

    def text(self, key: str) -> str:
        raw = self.raw.get(key)
        if not isinstance(raw, str) or not raw:
            raise SpecError(f"{self.at(key)}: invalid value {_shown(raw)}: must be a string")
        return raw

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
        """Return a list of strings. Strings may be empty, for example arguments of a hook."""
        listed = self._list(key)
        for each in listed:
            if not isinstance(each, str):
                raise SpecError(f"{self.at(key)}: invalid value {_shown(each)}: must be a string")
        return tuple(listed)

    def objects(self, key: str) -> Iterator[Object]:
        for index, each in enumerate(self._list(key)):
            yield Object(f"{self.at(key)}[{index}]", each)

    def _list(self, key: str) -> Sequence[Any]:
        raw = self.raw.get(key)
        if raw is None or isinstance(raw, list):
            return raw or ()
        raise SpecError(f"{self.at(key)}: invalid type {type(raw).__name__}: must be a list")
