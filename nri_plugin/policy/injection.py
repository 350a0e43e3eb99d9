"""What a container with a share gets: the GPUs by their CDI edits, our mounts, the environment.

Pure. The agent applies the CDI spec itself, so that on every containerd the GPU comes in the same
answer as its limit, or not at all. plan.py puts the parts together; checks.py refuses conflicts.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeVar

from gpuslice.contract import names
from nri_plugin.policy import capabilities
from nri_plugin.policy.model import CdiDevice, Claim, Container, Edits, Mount, Paths
from nri_plugin.policy.places import Destinations
from nri_plugin.policy.refusals import Reason, refused

_READ_ONLY: Final = ("bind", "ro", "nosuid", "nodev")
_READ_ONLY_DATA: Final = (*_READ_ONLY, "noexec")
_SHARED_DATA: Final = ("bind", "rw", "nosuid", "nodev", "noexec")

_DESTINATIONS: Final = (
    names.CONTAINER_DIR,
    names.CONTAINER_LIBRARY,
    f"{names.CONTAINER_DIR}/{names.FILE_REGION}",
    *names.CONTAINER_PRELOADS,
    names.CONTAINER_LIBRARY_VISIBLE,
)
"""Destinations that our mounts may have."""

_T = TypeVar("_T")


def our_mounts(container: Container, key: str, shared: bool, paths: Paths) -> Sequence[Mount]:
    """Return our mounts in mount order; the library's mount point is in the first. Containers that
    share a grant have their own preload lists, to which their images append."""
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
    # For users of HAMi's path. Nothing depends on it, so it is omitted if a volume of the
    # pod covers it; the runtime would otherwise have to create a mount point in that volume.
    visible = Mount(names.CONTAINER_LIBRARY_VISIBLE, library, _READ_ONLY)
    visible_at = Destinations([visible.destination])
    if all(visible_at.hidden_by(mount) is None for mount in container.mounts):
        mounts.append(visible)
    return tuple(mounts)


@dataclass(frozen=True, slots=True)
class GpuEdits:
    """Edits for every container that has the GPUs. mounts: the driver's. forwarders: ours in the
    place of its libraries, and what they load. in_the_way: those of the driver's mounts that may
    conflict with ours."""

    edits: Edits
    mounts: Sequence[Mount]
    forwarders: Sequence[Mount]
    in_the_way: Sequence[Mount]


@lru_cache(maxsize=64)
def gpu_edits(
    devices: Sequence[CdiDevice], given: AbstractSet[str], files: Sequence[tuple[str, str]]
) -> GpuEdits:
    """given: the capabilities to which files are restricted. files: forwarders by soname. Cached:
    the same devices are requested repeatedly, and the runtime waits for the answer."""
    edits = capabilities.cut(_edits(devices), given)
    driver, forwarders = _forwarded(edits.mounts, dict(files))
    destinations = Destinations((*_DESTINATIONS, *(mount.destination for mount in forwarders)))
    in_the_way = tuple(mount for mount in driver if destinations.hidden_by(mount) is not None)
    return GpuEdits(edits, tuple(driver), tuple(forwarders), in_the_way)


def _forwarded(
    mounts: Sequence[Mount], files: Mapping[str, str]
) -> tuple[Sequence[Mount], Sequence[Mount]]:
    """Return the CDI specs' mounts that stay, and ours that replace the driver's libraries.

    Each path of a driver library gets a forwarder; the file itself is mounted where the forwarder
    loads it from. The links' target is the file with the longest name.
    """
    destinations: dict[str, list[Mount]] = {soname: [] for soname in files}
    for mount in mounts:
        soname = _soname_of(mount.destination)
        if soname in destinations:
            destinations[soname].append(mount)
    ours = []
    for soname, libraries in destinations.items():
        if not libraries:
            raise refused(Reason.NOT_FORWARDED, soname=soname)
        real = max(libraries, key=lambda mount: len(mount.destination))
        ours.append(real._replace(destination=f"{names.CONTAINER_DRIVER_DIR}/{soname}"))
        ours += [Mount(mount.destination, files[soname], _READ_ONLY) for mount in libraries]
    replaced = {mount.destination for mount in ours}
    return [mount for mount in mounts if mount.destination not in replaced], ours


def _soname_of(destination: str) -> str | None:
    """Return the driver library of that file name: libcuda.so, .so.1, .so.580.65.06."""
    for soname in names.DRIVER_SONAMES:
        stem = soname.removesuffix(".1")
        name = posixpath.basename(destination)
        if re.fullmatch(re.escape(stem) + r"(\.[0-9]+)*", name):
            return soname
    return None


def environment(
    claim: Claim, driver_capabilities: str, cdi: Sequence[tuple[str, str]], hidden: bool
) -> Sequence[tuple[str, str]]:
    """Return the claim's variables and ours, which override those of the CDI specs.

    hidden: NVIDIA's runtime may run the container. It would inject the GPUs that
    NVIDIA_VISIBLE_DEVICES names once more, with all of the driver's files.
    HAMi-core reads the N in a key as the driver's GPU number, which follows the minors.
    """
    shares = sorted(claim.shares, key=lambda share: share.minor)
    visible = [str(share.minor) if claim.by_index else share.uuid for share in shares]
    # HAMi-core reads 0 percent as no limit; the grant file has the exact value.
    percents = [str(max(share.core_percent, 1)) for share in shares]
    ours = {
        **dict(claim.env),
        names.ENV_VISIBLE_DEVICES: names.VISIBLE_DEVICES_NONE if hidden else ",".join(visible),
        names.ENV_DRIVER_CAPABILITIES: driver_capabilities,
        names.ENV_CORE_LIMIT: percents[0],
        names.ENV_SHARED_CACHE: names.SHARED_CACHE_PATH,
    }
    for index, share in enumerate(shares):
        ours[f"{names.ENV_MEMORY_LIMIT}_{index}"] = str(share.memory_bytes)
        ours[f"{names.ENV_CORE_LIMIT}_{index}"] = percents[index]
    return (*ours.items(), *((key, value) for key, value in cdi if key not in ours))


def _edits(devices: Sequence[CdiDevice]) -> Edits:
    """Return the edits of the GPUs' devices and of their specs, without duplicates."""
    parts = [part for device in devices for part in (device.common, device.own)]
    return Edits(
        env=_unique("environment", (e for p in parts for e in p.env), lambda e: e[0]),
        devices=_unique("device", (d for p in parts for d in p.devices), lambda d: d.path),
        mounts=_unique("mount", (m for p in parts for m in p.mounts), lambda m: m.destination),
        hooks=tuple(dict.fromkeys(h for p in parts for h in p.hooks)),
    )


def _unique(what: str, items: Iterable[_T], place: Callable[[_T], Hashable]) -> Sequence[_T]:
    by_place: dict[Hashable, _T] = {}
    for item in items:
        at = place(item)
        if by_place.setdefault(at, item) != item:
            raise refused(Reason.CDI_CONFLICT, what=f"{what} {at}")
    return tuple(by_place.values())
