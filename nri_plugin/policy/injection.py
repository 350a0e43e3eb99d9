"""What a container with a share gets: the GPUs by their CDI edits, our mounts, the environment.

Pure. The agent applies the CDI specs itself. Therefore, with every containerd, a container gets a
GPU only together with its limit. plan.py joins these parts, and checks.py refuses conflicts.
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
from nri_plugin.policy import capabilities, ledger
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
"""All destinations of our mounts, apart from forwarders."""

_T = TypeVar("_T")


def file_name(container: Container, key: str) -> str:
    """Return the part of a container's own files' names where containers share a grant. Those of a
    claim may be of several pods, and equal in their names."""
    return container.id if ledger.claimed(key) else container.name


def claim_mounts(key: str) -> Sequence[Mount]:
    """Return the mount of nothing that replaces a claim's."""
    nothing = Mount(names.CONTAINER_CLAIM, "/dev/null", _READ_ONLY_DATA)
    return [nothing] if ledger.claimed(key) else ()


def our_mounts(container: Container, key: str, shared: bool, paths: Paths) -> Sequence[Mount]:
    """Return our mounts in the order of mounting, because some mount points are in the first mount.
    Each container has its own preload lists, even where a pod's containers share a grant."""
    directory = f"{paths.run_dir}/{key}"
    library = paths.library or ""
    of_its_own = f".{file_name(container, key)}" if shared else ""
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
    # Users of HAMi look for the library at this path. If a volume covers the path, this mount is
    # omitted. Otherwise the runtime would create a mount point in the volume.
    visible = Mount(names.CONTAINER_LIBRARY_VISIBLE, library, _READ_ONLY)
    visible_at = Destinations([visible.destination])
    if all(visible_at.hidden_by(mount) is None for mount in container.mounts):
        mounts.append(visible)
    return tuple(mounts)


@dataclass(frozen=True, slots=True)
class GpuEdits:
    """Edits for every container that has the GPUs. mounts: mounts of the driver's files.
    forwarders: mounts of forwarders over the driver's libraries, and of the libraries that they
    load. in_the_way: elements of `mounts` that may conflict with our mounts."""

    edits: Edits
    mounts: Sequence[Mount]
    forwarders: Sequence[Mount]
    in_the_way: Sequence[Mount]


@lru_cache(maxsize=64)
def gpu_edits(
    devices: Sequence[CdiDevice], given: AbstractSet[str], files: Sequence[tuple[str, str]]
) -> GpuEdits:
    """Return the edits of the devices. given: the driver capabilities whose files are injected.
    files: forwarders by soname. The result is cached, because many containers have equal GPUs."""
    edits = capabilities.cut(_edits(devices), given)
    driver, forwarders = _forwarded(edits.mounts, dict(files))
    destinations = Destinations((*_DESTINATIONS, *(mount.destination for mount in forwarders)))
    in_the_way = tuple(mount for mount in driver if destinations.hidden_by(mount) is not None)
    return GpuEdits(edits, tuple(driver), tuple(forwarders), in_the_way)


def _forwarded(
    mounts: Sequence[Mount], files: Mapping[str, str]
) -> tuple[Sequence[Mount], Sequence[Mount]]:
    """Return the CDI specs' mounts without the driver's libraries, and the forwarders' mounts.

    A forwarder is mounted at each path of a driver library. The library itself is mounted where the
    forwarder loads it from. The longest path is the library's file. The other paths are links.
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
    """Return the soname of the driver library with a name like libcuda.so or libcuda.so.580.65."""
    for soname in names.DRIVER_SONAMES:
        stem = soname.removesuffix(".1")
        name = posixpath.basename(destination)
        if re.fullmatch(re.escape(stem) + r"(\.[0-9]+)*", name):
            return soname
    return None


def environment(
    claim: Claim, driver_capabilities: str, cdi: Sequence[tuple[str, str]], hidden: bool
) -> Sequence[tuple[str, str]]:
    """Return the claim's variables, ours, and those of the CDI specs, in this precedence.

    hidden: NVIDIA's runtime may run the container. It would inject the GPUs of
    NVIDIA_VISIBLE_DEVICES a second time, with all of the driver's files.
    HAMi-core reads the number in a key as the index of a GPU in the order of minors.
    """
    shares = sorted(claim.shares, key=lambda share: share.minor)
    visible = [str(share.minor) if claim.by_index else share.uuid for share in shares]
    # HAMi-core reads 0 percent as no limit. Our library reads the exact value from the grant file.
    # A ResourceClaim of 0 percent has no cap.
    percents = [str(share.core_percent or (100 if claim.key else 1)) for share in shares]
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
    """Join the edits of the CDI devices and of their specs, without duplicates."""
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
