"""Compares a container's plan with the adjustment of all NRI plugins, and with its mounts.

Pure. The runtime reports the adjustment at the validation, and the mounts from the container's
start on. A part that another plugin set is a difference even if its value equals ours, because
that plugin could set another value next time. rootfs.py compares the files that programs see.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from gpuslice.contract import names
from nri_plugin.policy.merged import Merged
from nri_plugin.policy.model import Mount
from nri_plugin.policy.places import Destinations, normal
from nri_plugin.policy.plan import GRANT, ContainerPlan

_number = attrgetter("type", "major", "minor")


class Difference(NamedTuple):
    """A part of the plan that differs, and how."""

    what: str
    problem: str


def in_adjustment(plan: ContainerPlan, merged: Merged) -> Iterator[Difference]:
    """Yield each part of the plan that the merged adjustment lacks, or that another plugin set."""
    checks = (_of_env, _of_mounts, _of_devices, _of_hooks, _of_owners)
    return chain.from_iterable(check(plan, merged) for check in checks)


def has_mounts(plan: ContainerPlan, mounts: Sequence[Mount]) -> bool:
    """Whether a created container has the plan's mounts, with the same sources. False for a plan
    without the library."""
    mounted = {mount.destination: mount.source for mount in mounts}
    mounted[GRANT] = f"{mounted.get(names.CONTAINER_DIR)}/{names.FILE_GRANT}"
    planned = {names.CONTAINER_LIBRARY: "", **plan.files}
    return all(mounted.get(place) == source for place, source in planned.items())


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
