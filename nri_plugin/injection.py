"""What a container with a grant is brought: the GPU by its CDI edits, and the limit.

Pure, and part of the policy: policy.py says who gets how much, this module what that means in
mounts, devices, environment and hooks, and what may not stand in its way.

We apply the CDI spec ourselves instead of asking the runtime to: on every containerd the GPU then
comes in one answer with its limit, or not at all.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, TypeVar

from contract import names
from nri_plugin import capabilities
from nri_plugin.errors import Reason, Refused, refuse
from nri_plugin.model import (
    Adjustment,
    Bringing,
    CdiDevice,
    Container,
    Edits,
    Mount,
    Paths,
    Share,
    Specs,
)

_READ_ONLY: Final = ("bind", "ro", "nosuid", "nodev")
_READ_ONLY_DATA: Final = (*_READ_ONLY, "noexec")
_SHARED_DATA: Final = ("bind", "rw", "nosuid", "nodev", "noexec")

_PLACES: Final = (
    names.CONTAINER_DIR,
    names.CONTAINER_LIBRARY,
    f"{names.CONTAINER_DIR}/{names.FILE_REGION}",
    *names.CONTAINER_PRELOADS,
    names.CONTAINER_LIBRARY_VISIBLE,
)
"""Where ours may lie."""

_T = TypeVar("_T")


def adjustment(
    container: Container,
    key: str,
    shared: bool,
    shares: Sequence[Share],
    specs: Specs,
    paths: Paths,
) -> Adjustment:
    """The whole adjustment; raises Refused where something stands in its way."""
    held = capabilities.held(container.env, paths.bringing.capabilities)
    devices = tuple(_device(share.uuid, specs) for share in shares)
    files = tuple(paths.forwarders.items())
    if paths.bringing.by_name:
        check_by_name(_edits(devices), paths.bringing)
        brought = _brought(devices, None, files)
    else:
        brought = _brought(devices, held.given, files)
    edits, driver = brought.edits, brought.driver
    ours = (*_our_mounts(container, key, shared, paths), *brought.forwarders)
    places = _Places(mount.destination for mount in ours)
    for mount in container.mounts:
        _check_collision(mount, places)
    for mount in brought.in_the_way:
        _check_collision(mount, places)
    by_name = paths.bringing.by_name
    env = _environment(shares, held.text, () if by_name else edits.env)
    check_env(container, env)
    whole = Adjustment(env=env, key=key, shared=shared, shares=shares, mounts=ours, cut=held.cut)
    if by_name:
        asked = tuple(f"{names.CDI_KIND}={share.uuid}" for share in shares)
        return replace(whole, cdi_devices=asked)
    mounts = (*driver, *ours)
    return replace(whole, mounts=mounts, devices=edits.devices, hooks=edits.hooks)


def check_by_name(edits: Edits, bringing: Bringing) -> None:
    """Refuse what the runtime would not bring, or bring beyond what is allowed."""
    problem = bringing.by_name_problem
    beyond = capabilities.beyond(edits, bringing.capabilities)
    if problem is None and beyond:
        problem = (
            f"their spec holds files of {', '.join(beyond)}, and a runtime applies it whole; remove"
            " them from the spec, or allow them (--driver-capabilities)"
        )
    if problem is not None:
        raise Refused(refuse(Reason.CDI_BY_NAME, problem=problem))


def check_env(container: Container, env: Sequence[tuple[str, str]]) -> None:
    """Refuse a container that holds one of our keys twice.

    The runtime replaces the first of them in place; the program sees the second one.
    """
    present = [line.partition("=")[0] for line in container.env]
    for key, _ in env:
        count = present.count(key)
        if count > 1:
            raise Refused(refuse(Reason.ENV_TWICE, key=key, count=count))


def _our_mounts(container: Container, key: str, shared: bool, paths: Paths) -> Sequence[Mount]:
    """Ours, in the order in which they are stacked; the library's placeholder lies in the first.

    Containers that share a grant have preload lists of their own, to which their images add.
    """
    directory = f"{paths.run_dir}/{key}"
    library = paths.library or ""
    of_its_own = f".{container.name}" if shared else ""
    mounts = [
        Mount(names.CONTAINER_DIR, directory, (*_READ_ONLY, "rprivate")),
        Mount(names.CONTAINER_LIBRARY, library, _READ_ONLY),
        Mount(
            f"{names.CONTAINER_DIR}/{names.FILE_REGION}",
            f"{directory}/{names.FILE_REGION}",
            _SHARED_DATA,
        ),
    ]
    mounts += [
        Mount(place, f"{directory}/{name}{of_its_own}", _READ_ONLY_DATA)
        for place, name in names.CONTAINER_PRELOADS.items()
    ]
    # A courtesy to people who look where HAMi puts it. Nothing depends on it, so it gives way to
    # a volume of the pod's own, into which the runtime would otherwise have to write a mount point.
    visible = Mount(names.CONTAINER_LIBRARY_VISIBLE, library, _READ_ONLY)
    place = _Places([visible.destination])
    if all(place.hidden_by(mount) is None for mount in container.mounts):
        mounts.append(visible)
    return tuple(mounts)


@dataclass(frozen=True, slots=True)
class _Brought:
    """What GPUs bring to every container that has them.

    in_the_way: those of the driver's mounts that may meet one of ours.
    """

    edits: Edits
    driver: Sequence[Mount]
    forwarders: Sequence[Mount]
    in_the_way: Sequence[Mount]


@lru_cache(maxsize=64)
def _brought(
    devices: Sequence[CdiDevice],
    given: AbstractSet[str] | None,
    files: Sequence[tuple[str, str]],
) -> _Brought:
    """given: the capabilities to which the files are held; None: the runtime applies the spec.

    The same devices are asked for again and again, and the runtime waits for the answer.
    """
    edits = _edits(devices)
    if given is not None:
        edits = capabilities.cut(edits, given)
    driver, forwarders = _forwarded(edits.mounts, dict(files))
    places = _Places((*_PLACES, *(mount.destination for mount in forwarders)))
    in_the_way = tuple(mount for mount in driver if places.hidden_by(mount) is not None)
    return _Brought(edits, tuple(driver), tuple(forwarders), in_the_way)


def _forwarded(
    mounts: Sequence[Mount], files: Mapping[str, str]
) -> tuple[Sequence[Mount], Sequence[Mount]]:
    """The CDI specs' mounts as they stay, and ours in the place of the driver's libraries.

    A forwarder lies wherever a file of the library would; the file itself lies where the forwarder
    looks for it. Of several, the longest name is the file that others are links to.
    """
    places: dict[str, list[Mount]] = {soname: [] for soname in files}
    for mount in mounts:
        soname = _soname_of(mount.destination)
        if soname in places:
            places[soname].append(mount)
    ours = []
    for soname, found in places.items():
        if not found:
            raise Refused(refuse(Reason.NOT_FORWARDED, soname=soname))
        real = max(found, key=lambda mount: len(mount.destination))
        ours.append(replace(real, destination=f"{names.CONTAINER_DRIVER_DIR}/{soname}"))
        ours += [Mount(mount.destination, files[soname], _READ_ONLY) for mount in found]
    replaced = {mount.destination for mount in ours}
    return [mount for mount in mounts if mount.destination not in replaced], ours


def _soname_of(destination: str) -> str | None:
    """The driver library whose file that is, by its name: libcuda.so, .so.1, .so.580.65.06."""
    for soname in names.DRIVER_SONAMES:
        stem = soname.removesuffix(".1")
        name = posixpath.basename(destination)
        if re.fullmatch(re.escape(stem) + r"(\.[0-9]+)*", name):
            return soname
    return None


def _check_collision(mount: Mount, places: _Places) -> None:
    hidden = places.hidden_by(mount)
    if hidden is not None:
        raise Refused(refuse(Reason.MOUNT_COLLISION, mount=mount.destination, ours=hidden))


class _Places:
    """Destinations of ours, for many mounts to be compared with."""

    def __init__(self, destinations: Iterable[str]) -> None:
        self._prefixes = [(place, _prefix(place)) for place in destinations]

    def hidden_by(self, mount: Mount) -> str | None:
        """The first of them that `mount` would lie over, under or inside."""
        there = normal(mount.destination)
        prefix = _prefix(there)
        for place, below in self._prefixes:
            if there == place or place.startswith(prefix) or there.startswith(below):
                return place
        return None


def collision(mount: Mount, ours: Sequence[Mount]) -> str | None:
    """Which of ours `mount` would lie over, under or inside; None: it is out of the way."""
    return _Places(our.destination for our in ours).hidden_by(mount)


def normal(destination: str) -> str:
    if (
        destination.startswith("/")
        and "//" not in destination
        and "/." not in destination
        and not destination.endswith("/")
    ):
        return destination
    return "/" + posixpath.normpath("/" + destination).lstrip("/")


def is_below(path: str, directory: str) -> bool:
    return path.startswith(_prefix(directory))


def _prefix(directory: str) -> str:
    return directory.rstrip("/") + "/"


def _environment(
    shares: Sequence[Share], driver_capabilities: str, cdi: Sequence[tuple[str, str]]
) -> Sequence[tuple[str, str]]:
    """Ours, then what the CDI specs add; ours win, as nvidia-ctk's specs set some of the keys.

    HAMi-core takes the N in a key for the driver's number of the GPU, which follows the minors.
    """
    shares = sorted(shares, key=lambda share: share.minor)
    # HAMi-core reads 0 percent as no limit; the grant file says the exact value.
    percents = [str(max(share.core_percent, 1)) for share in shares]
    ours = {
        names.ENV_VISIBLE_DEVICES: ",".join(share.uuid for share in shares),
        names.ENV_DRIVER_CAPABILITIES: driver_capabilities,
        names.ENV_CORE_LIMIT: percents[0],
        names.ENV_SHARED_CACHE: names.SHARED_CACHE_PATH,
    }
    for index, share in enumerate(shares):
        ours[f"{names.ENV_MEMORY_LIMIT}_{index}"] = str(share.memory_bytes)
        ours[f"{names.ENV_CORE_LIMIT}_{index}"] = percents[index]
    return (*ours.items(), *((key, value) for key, value in cdi if key not in ours))


def _edits(devices: Sequence[CdiDevice]) -> Edits:
    """The edits of the GPUs' devices and of their specs, each thing once."""
    parts = [part for device in devices for part in (device.common, device.own)]
    return Edits(
        env=_unique("environment", (e for p in parts for e in p.env), lambda e: e[0]),
        devices=_unique("device", (d for p in parts for d in p.devices), lambda d: d.path),
        mounts=_unique("mount", (m for p in parts for m in p.mounts), lambda m: m.destination),
        hooks=tuple(dict.fromkeys(h for p in parts for h in p.hooks)),
    )


def _device(uuid: str, specs: Specs) -> CdiDevice:
    device = specs.devices.get(uuid)
    if device is None:
        hint = f"; unreadable: {'; '.join(specs.problems)}" if specs.problems else ""
        raise Refused(refuse(Reason.CDI_MISSING, uuid=uuid, hint=hint))
    if device.problem is not None:
        raise Refused(
            refuse(Reason.CDI_UNUSABLE, uuid=uuid, file=device.file, problem=device.problem)
        )
    return device


def _unique(what: str, items: Iterable[_T], place: Callable[[_T], Hashable]) -> Sequence[_T]:
    by_place: dict[Hashable, _T] = {}
    for item in items:
        at = place(item)
        if by_place.setdefault(at, item) != item:
            raise Refused(refuse(Reason.CDI_CONFLICT, what=f"{what} {at}"))
    return tuple(by_place.values())
