"""Judges the combined adjustment of all NRI plugins, before the container is created.

Pure. The runtime reports which plugin set each mount, variable and device. Our adjustment must be
complete, unchanged, and owned by us: a plugin that replaces our value by the same value could
replace it by another one next time, and is rejected now.

A container with a share gets GPUs only from this agent, because a GPU of another plugin has no
limit. GPUs that other plugins give to containers without a share are permitted, and counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter

from contract import names
from nri_plugin.policy import nvidia
from nri_plugin.policy.injection import Destinations, normal
from nri_plugin.policy.model import Adjustment, Device, Hook, Mount

Owned = Mapping[str, str]
"""Key -> owner. An owner is a plugin's index and name, `50-gpuslice`."""


@dataclass(frozen=True, slots=True)
class Owners:
    """The plugin that set each item. A key or destination with a leading "-" is a removal."""

    env: Owned = field(default_factory=dict)
    mounts: Owned = field(default_factory=dict)
    devices: Owned = field(default_factory=dict)
    cdi_names: Owned = field(default_factory=dict)
    hooks: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class CgroupRule:
    """Devices that a container may open without a device node of its own; None: any number.

    The runtime does not report which plugin wrote it.
    """

    type: str
    major: int | None
    minor: int | None
    access: str


@dataclass(frozen=True, slots=True)
class Merged:
    """The adjustment of all plugins together."""

    env: Sequence[tuple[str, str]] = ()
    mounts: Sequence[Mount] = ()
    devices: Sequence[Device] = ()
    hooks: Sequence[Hook] = ()
    cdi_names: Sequence[str] = ()
    owners: Owners = field(default_factory=Owners)
    cgroup_rules: Sequence[CgroupRule] = ()


@dataclass(frozen=True, slots=True)
class ForeignGpu:
    """A GPU, or what injects one, that is not ours. plugin: "" if the runtime reports none."""

    plugin: str
    what: str


def lost(wanted: Adjustment, merged: Merged, me: str) -> str | None:
    """Return what of ours is missing, changed, hidden or owned by another plugin; None: nothing."""
    checks = (_lost_env, _lost_mounts, _lost_devices, _lost_hooks)
    return next(chain.from_iterable(check(wanted, merged, me) for check in checks), None)


def _lost_env(wanted: Adjustment, merged: Merged, me: str) -> Iterator[str]:
    last = dict(merged.env)
    for key, value in wanted.env:
        if last.get(key) != value:
            yield f"environment {key} is {last.get(key)!r} instead of {value!r}"
        yield from _not_mine(f"environment {key}", merged.owners.env.get(key), me)


def _lost_mounts(wanted: Adjustment, merged: Merged, me: str) -> Iterator[str]:
    last = {normal(mount.destination): mount for mount in merged.mounts}
    owners = merged.owners.mounts
    for mount in wanted.mounts:
        found, owner = last.get(mount.destination), owners.get(mount.destination)
        if found == mount and owner == me:
            continue
        what = f"mount {mount.destination}"
        if found is None or found.source != mount.source:
            yield f"{what} was removed or has another source"
        elif set(mount.options) - set(found.options):
            yield f"{what} has the options {','.join(found.options)}"
        yield from _not_mine(what, owner, me)
    ours = {mount.destination for mount in wanted.mounts}
    visible = names.CONTAINER_LIBRARY_VISIBLE
    protective = Destinations(m.destination for m in wanted.mounts if m.destination != visible)
    for mount in merged.mounts:
        if mount.destination not in ours and normal(mount.destination) not in ours:
            hidden = protective.hidden_by(mount)
            if hidden is not None:
                yield f"mount {mount.destination} hides {hidden}"


def _lost_devices(wanted: Adjustment, merged: Merged, me: str) -> Iterator[str]:
    last = {device.path: device for device in merged.devices}
    for device in wanted.devices:
        what = f"device {device.path}"
        number = attrgetter("type", "major", "minor")
        found = last.get(device.path)
        if found is None or number(found) != number(device):
            yield f"{what} was removed or replaced"
        yield from _not_mine(what, merged.owners.devices.get(device.path), me)


def _lost_hooks(wanted: Adjustment, merged: Merged, me: str) -> Iterator[str]:
    for hook in wanted.hooks:
        if hook not in merged.hooks or me not in merged.owners.hooks:
            yield f"{hook.stage.value} hook {hook.path} was removed"


def _not_mine(what: str, owner: str | None, me: str) -> Iterator[str]:
    if owner != me:
        yield f"{what} was set by {owner or 'no plugin'}"


@dataclass(frozen=True, slots=True)
class Host:
    """Facts of the host about other plugins' adjustments. cdi_gpus: those of their CDI names that
    inject a GPU; majors: the major numbers of the driver's nodes."""

    cdi_gpus: AbstractSet[str] = frozenset()
    majors: AbstractSet[int] = frozenset()


def host_names(merged: Merged, me: str) -> Sequence[str] | None:
    """Return other plugins' CDI names to resolve on the host; None: the host is not needed."""
    cdi_names = [name for name in merged.cdi_names if merged.owners.cdi_names.get(name) != me]
    return cdi_names if cdi_names or merged.cgroup_rules else None


def foreign_gpu(merged: Merged, me: str, host: Host = Host()) -> ForeignGpu | None:
    """Return the first GPU that another plugin injects."""
    for owner, what in _gpus(merged, host):
        if owner != me:
            return ForeignGpu(owner, what)
    return None


def _gpus(merged: Merged, host: Host) -> Iterator[tuple[str, str]]:
    owners = merged.owners
    for device in merged.devices:
        if nvidia.is_node(device.path, device.major):
            yield owners.devices.get(device.path, ""), f"device {device.path}"
    for mount in merged.mounts:
        if nvidia.may_be_node(mount.destination + mount.source) and any(
            nvidia.is_node(path, 0) for path in (normal(mount.destination), mount.source)
        ):
            yield owners.mounts.get(mount.destination, ""), f"mount {mount.destination}"
    for key, value in merged.env:
        if nvidia.names_gpus(key, value):
            yield owners.env.get(key, ""), f"environment {key}={value}"
    for rule in merged.cgroup_rules:
        if _opens_gpus(rule, host.majors):
            numbers = ":".join("*" if n is None else str(n) for n in (rule.major, rule.minor))
            yield "", f"the cgroup rule {rule.type or 'a'} {numbers} {rule.access}".rstrip()
    for name in merged.cdi_names:
        if name in host.cdi_gpus:
            yield owners.cdi_names.get(name, ""), f"CDI device {name}"


def _opens_gpus(rule: CgroupRule, majors: AbstractSet[int]) -> bool:
    """Exclude a rule that only allows mknod (m), which the runtime adds for every container."""
    opens = not rule.access or not {"r", "w"}.isdisjoint(rule.access)
    return opens and rule.type in ("", "a", "c") and (rule.major is None or rule.major in majors)
