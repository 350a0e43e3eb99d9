"""Where in a container the limit lies, and by what it must be there for the limit to hold.

Pure. Read from the container's own mounts, which the runtime keeps, so that an agent that has just
been started knows as much as the one that made them; rootfs.py compares it with what is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from contract import names
from nri_plugin.injection import is_below
from nri_plugin.model import Mount

_GRANT: Final = f"{names.CONTAINER_DIR}/{names.FILE_GRANT}"


def in_place(
    mounts: Sequence[Mount],
    directory: str,
    store_dir: str,
    recorded: Mapping[str, str] | None = None,
) -> Sequence[Mount] | None:
    """What must be in place inside a container for its limit to hold, by its mounts; None: it is
    not all mounted.

    directory: the container's own, under the run directory. recorded: by place, what was to be
    mounted when the container was made; a later release may mount more. None: no record, as of
    releases that wrote none, and then what every release mounts is asked for. With the mounts comes
    the grant, which is only a file in one of them, but one that another mount could hide.
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
    # The library, and in strict mode the forwarders and what they forward to.
    stored = {
        mount.destination: mount.source
        for mount in mounts
        if mount.destination != names.CONTAINER_LIBRARY_VISIBLE
        and (is_below(mount.source, store_dir) or is_below(mount.destination, names.CONTAINER_DIR))
    }
    if names.CONTAINER_LIBRARY not in stored or ours.items() - mounted.items():
        return None
    return tuple(Mount(place, source) for place, source in {**stored, **ours}.items())


def _list_of(mounted: str, shared: str) -> str:
    """The preload list that must be there: the container's own, where its grant is its pod's."""
    return mounted if mounted.startswith(f"{shared}.") else shared
