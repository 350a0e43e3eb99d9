"""The joint adjustment of all NRI plugins, and the GPUs in it that other plugins inject.

Pure. The runtime reports which plugin set each mount, variable and device. A container with a share
may get GPUs only from this agent, because a GPU of another plugin has no limit. Other plugins may
give GPUs to containers without a share. The agent counts these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from nri_plugin.policy import nvidia
from nri_plugin.policy.model import Device, Hook, Mount
from nri_plugin.policy.places import normal

Owned = Mapping[str, str]
"""Key of a part -> the part's owner: a plugin's index and name, for example `50-gpuslice`."""


@dataclass(frozen=True, slots=True)
class Owners:
    """The plugins that set the parts of an adjustment. A leading "-" of a key means a removal."""

    env: Owned = field(default_factory=dict)
    mounts: Owned = field(default_factory=dict)
    devices: Owned = field(default_factory=dict)
    cdi_names: Owned = field(default_factory=dict)
    hooks: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class CgroupRule:
    """A rule that allows a container to open devices. major, minor: None for any number. The
    runtime does not report which plugin wrote the rule."""

    type: str
    major: int | None
    minor: int | None
    access: str


@dataclass(frozen=True, slots=True)
class Merged:
    """The joint adjustment of all plugins. me: the agent's index and name."""

    me: str
    env: Sequence[tuple[str, str]] = ()
    mounts: Sequence[Mount] = ()
    devices: Sequence[Device] = ()
    hooks: Sequence[Hook] = ()
    cdi_names: Sequence[str] = ()
    owners: Owners = field(default_factory=Owners)
    cgroup_rules: Sequence[CgroupRule] = ()


@dataclass(frozen=True, slots=True)
class ForeignGpu:
    """A part of the adjustment by which another plugin injects a GPU. plugin: "" if the runtime
    reports no owner."""

    plugin: str
    what: str


@dataclass(frozen=True, slots=True)
class Host:
    """What the host shows about other plugins' adjustments. cdi_gpus: other plugins' CDI names that
    inject a GPU. majors: the major numbers of the driver's device nodes."""

    cdi_gpus: AbstractSet[str] = frozenset()
    majors: AbstractSet[int] = frozenset()


def host_names(merged: Merged) -> Sequence[str] | None:
    """Return other plugins' CDI names, which must be resolved on the host. None: `foreign_gpu`
    needs no data of the host."""
    owner = merged.owners.cdi_names.get
    cdi_names = [name for name in merged.cdi_names if owner(name) != merged.me]
    return cdi_names if cdi_names or merged.cgroup_rules else None


def foreign_gpu(merged: Merged, host: Host = Host()) -> ForeignGpu | None:
    """Return the first part by which another plugin injects a GPU, or None."""
    gpus = (ForeignGpu(owner, what) for owner, what in _gpus(merged, host))
    return next((gpu for gpu in gpus if gpu.plugin != merged.me), None)


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
    """Whether a rule allows reading or writing GPUs. A rule that only allows mknod (m) does not
    count, because the runtime adds such a rule to every container."""
    opens = not rule.access or not {"r", "w"}.isdisjoint(rule.access)
    return opens and rule.type in ("", "a", "c") and (rule.major is None or rule.major in majors)
