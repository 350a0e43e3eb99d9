"""Which files must be mounted where in a container for its limit to be enforced.

Pure. Derived from the container's own mounts, which the runtime keeps, so that a restarted agent
obtains the same result. rootfs.py compares it with the mounts that the container really has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from contract import names
from nri_plugin.policy.injection import is_below
from nri_plugin.policy.model import Mount

_GRANT: Final = f"{names.CONTAINER_DIR}/{names.FILE_GRANT}"


def in_place(
    mounts: Sequence[Mount],
    directory: str,
    store_dir: str,
    recorded: Mapping[str, str] | None = None,
) -> Sequence[Mount] | None:
    """Return what must be mounted in a container to enforce its limit; None: its own mounts lack a
    part of that.

    directory: the container's own, under the run directory. recorded: by path, what had to be
    mounted when the container was created, since a later release may mount more. None: no record
    (releases that wrote none); then what every release mounts is required. The grant needs no entry
    of its own: it is a file in one of these mounts, but one that another mount could hide.
    """
    mounted = {mount.destination: mount.source for mount in mounts}
    mounted[_GRANT] = f"{directory}/{names.FILE_GRANT}"
    if recorded is not None:
        if names.CONTAINER_LIBRARY not in recorded or recorded.items() - mounted.items():
            return None
        return tuple(Mount(place, source) for place, source in recorded.items())
    preloads = {
        place: _list_of(mounted.get(place, ""), f"{directory}/{name}")
        for place, name in names.CONTAINER_PRELOADS.items()
        if place in mounted or place == names.CONTAINER_PRELOAD
    }
    ours = {
        names.CONTAINER_DIR: directory,
        _GRANT: mounted[_GRANT],
        f"{names.CONTAINER_DIR}/{names.FILE_REGION}": f"{directory}/{names.FILE_REGION}",
        **preloads,
    }
    # The library, and in strict mode the forwarders and the libraries that they load.
    stored = {
        place: source
        for place, source in mounted.items()
        if place != names.CONTAINER_LIBRARY_VISIBLE
        and (is_below(source, store_dir) or is_below(place, names.CONTAINER_DIR))
    }
    if names.CONTAINER_LIBRARY not in stored or ours.items() - mounted.items():
        return None
    return tuple(Mount(place, source) for place, source in {**stored, **ours}.items())


def _list_of(mounted: str, shared: str) -> str:
    """Return the required preload list: the container's own if its grant is shared by its pod."""
    return mounted if mounted.startswith(f"{shared}.") else shared
