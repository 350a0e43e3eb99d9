"""Compares a container's plan with what the container has, at each moment of its life.

Pure, and the only comparison. Validation shows the adjustment of all NRI plugins, the start and a
restart of the agent the mounts that the runtime keeps, and the container's process the files that
its programs see. A plugin that replaces our value by the same value could replace it by another one
next time, so that is a difference, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from gpuslice.contract import names
from nri_plugin.policy.merged import Merged
from nri_plugin.policy.model import Mount
from nri_plugin.policy.places import Destinations, normal
from nri_plugin.policy.plan import GRANT, ContainerPlan

Identity = tuple[int, int]
"""A file's device and inode."""

_number = attrgetter("type", "major", "minor")


class Seen(NamedTuple):
    """A file that a container's programs see at `path`. there: None if there is none. what: its
    kind and size."""

    path: str
    ours: Identity
    there: Identity | None
    what: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    """What a container has. None: that part was not observed.

    merged: all plugins' adjustment, before the creation. mounts: those of the created container.
    seen: the files at the paths of the plan's, in the view of its process.
    """

    merged: Merged | None = None
    mounts: Sequence[Mount] | None = None
    seen: Iterable[Seen] = ()


class Difference(NamedTuple):
    """What of the plan differs, and how."""

    what: str
    problem: str


def differences(plan: ContainerPlan, observed: Observed) -> Iterator[Difference]:
    """Yield what of the plan is missing, changed, hidden or owned by another plugin."""
    if observed.merged is not None:
        checks = (_of_env, _of_mounts, _of_devices, _of_hooks, _of_owners)
        yield from chain.from_iterable(check(plan, observed.merged) for check in checks)
    if observed.mounts is not None:
        yield from _of_created(plan, observed.mounts)
    for path, ours, there, what in observed.seen:
        if there != ours:
            yield Difference(path, "it does not exist" if there is None else what)


def _of_env(plan: ContainerPlan, merged: Merged) -> Iterator[Difference]:
    last = dict(merged.env)
    for key, value in plan.env:
        if last.get(key) != value:
            yield Difference(f"environment {key}", f"is {last.get(key)!r} instead of {value!r}")


def _of_mounts(plan: ContainerPlan, merged: Merged) -> Iterator[Difference]:
    last = {normal(mount.destination): mount for mount in merged.mounts}
    for mount in plan.mounts:
        there = last.pop(normal(mount.destination), None)
        if there == mount:
            continue
        what = f"mount {mount.destination}"
        if there is None or there.source != mount.source:
            yield Difference(what, "was removed or has another source")
        elif set(mount.options) - set(there.options):
            yield Difference(what, f"has the options {','.join(there.options)}")
    if not last:
        return
    visible = names.CONTAINER_LIBRARY_VISIBLE
    protective = Destinations(m.destination for m in plan.mounts if m.destination != visible)
    for mount in last.values():
        hidden = protective.hidden_by(mount)
        if hidden is not None:
            yield Difference(f"mount {mount.destination}", f"hides {hidden}")


def _of_devices(plan: ContainerPlan, merged: Merged) -> Iterator[Difference]:
    last = {device.path: device for device in merged.devices}
    for device in plan.devices:
        there = last.get(device.path)
        if there is None or _number(there) != _number(device):
            yield Difference(f"device {device.path}", "was removed or replaced")


def _of_hooks(plan: ContainerPlan, merged: Merged) -> Iterator[Difference]:
    for hook in plan.hooks:
        if hook not in merged.hooks or merged.me not in merged.owners.hooks:
            yield Difference(f"{hook.stage.value} hook {hook.path}", "was removed")


def _of_owners(plan: ContainerPlan, merged: Merged) -> Iterator[Difference]:
    owners, me = merged.owners, merged.me
    owned = (
        *((f"environment {key}", owners.env.get(key)) for key, _ in plan.env),
        *((f"mount {each[0]}", owners.mounts.get(each[0])) for each in plan.mounts),
        *((f"device {each.path}", owners.devices.get(each.path)) for each in plan.devices),
    )
    for what, owner in owned:
        if owner != me:
            yield Difference(what, f"was set by {owner or 'no plugin'}")


def _of_created(plan: ContainerPlan, mounts: Sequence[Mount]) -> Iterator[Difference]:
    """The runtime keeps a mount's source. The grant is a file in one of our mounts. A plan without
    the library is none."""
    mounted = {mount.destination: mount.source for mount in mounts}
    mounted[GRANT] = f"{mounted.get(names.CONTAINER_DIR)}/{names.FILE_GRANT}"
    for place, source in {names.CONTAINER_LIBRARY: "", **plan.files}.items():
        if mounted.get(place) != source:
            yield Difference(f"mount {place}", "was removed or has another source")
