"""A plan compared with what the container has: one row for each difference, at each moment; and
GPUs that other NRI plugins bring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import pytest

from gpuslice.contract import names
from nri_plugin.policy import differences
from nri_plugin.policy import plan as plans
from nri_plugin.policy.merged import (
    CgroupRule,
    ForeignGpu,
    Host,
    Merged,
    Owners,
    foreign_gpu,
    host_names,
)
from nri_plugin.policy.model import Device, Hook, HookStage, Mount, Share
from tests.nri_plugin.objects import planned

ME, OTHER = "50-gpuslice", "60-other"
GPU = Device("/dev/nvidia0", "c", 195, 0, 0o666)
HOOK = Hook(HookStage.CREATE_CONTAINER, "/usr/bin/nvidia-ctk", ("nvidia-ctk",))
PLAN = replace(planned("c1", (Share("GPU-1", 0, 1, 1),)), devices=(GPU,), hooks=(HOOK,))
(PRELOAD,) = (each for each in PLAN.mounts if each.destination == names.CONTAINER_PRELOAD)
REST = tuple(each for each in PLAN.mounts if each is not PRELOAD)
WHOLE = Merged(
    ME,
    PLAN.env,
    PLAN.mounts,
    tuple(device._replace(file_mode=None) for device in PLAN.devices),
    PLAN.hooks,
    (),
    Owners(
        env={key: ME for key, _ in PLAN.env},
        mounts={mount.destination: ME for mount in PLAN.mounts},
        devices={device.path: ME for device in PLAN.devices},
        hooks=("10-early", ME),
    ),
)
"""The agent's own answer, with the agent as owner."""
VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def owners(**changes: Any) -> Merged:
    return replace(WHOLE, owners=replace(WHOLE.owners, **changes))


def of_another(field: str, key: str) -> Merged:
    return owners(**{field: {**getattr(WHOLE.owners, field), key: OTHER}})


def with_mounts(*mounts: Mount) -> Merged:
    return replace(WHOLE, mounts=mounts)


AT_VALIDATION: Final[Mapping[str, Merged]] = {
    f"environment {VISIBLE} is 'all' instead of 'GPU-1'": replace(
        WHOLE, env=(*PLAN.env, (VISIBLE, "all"))
    ),
    f"environment {VISIBLE} is None": replace(WHOLE, env=()),
    f"environment {VISIBLE} was set by 60-other": of_another("env", VISIBLE),
    f"environment {VISIBLE} was set by no plugin": owners(env={}),
    "mount /etc/ld.so.preload was removed": with_mounts(*REST),
    "mount /etc/ld.so.preload was removed or": with_mounts(
        *PLAN.mounts, PRELOAD._replace(source="/evil", destination="/etc/x/../ld.so.preload")
    ),
    "mount /etc/ld.so.preload has the options bind": with_mounts(
        *REST, PRELOAD._replace(options=("bind",))
    ),
    "mount /etc/ld.so.preload was set by 60-other": of_another("mounts", "/etc/ld.so.preload"),
    "mount /etc hides /etc/ld.so.preload": with_mounts(*PLAN.mounts, Mount("/etc", "/x")),
    "mount /.gpuslice/x hides /.gpuslice": with_mounts(*PLAN.mounts, Mount("/.gpuslice/x", "/x")),
    "device /dev/nvidia0 was removed": replace(WHOLE, devices=()),
    "device /dev/nvidia0 was removed or replaced": replace(WHOLE, devices=(GPU._replace(minor=1),)),
    "device /dev/nvidia0 was set by 60-other": of_another("devices", "/dev/nvidia0"),
    "createContainer hook /usr/bin/nvidia-ctk was removed": replace(WHOLE, hooks=()),
    "createContainer hook /usr/bin/nvidia-ctk was": owners(hooks=("10-early",)),
}


@pytest.mark.parametrize("text", AT_VALIDATION)
def test_what_another_plugin_changed(text: str) -> None:
    first = next(differences.in_adjustment(PLAN, AT_VALIDATION[text]))
    assert " ".join(first).startswith(text)


HARMLESS: Final[Mapping[str, Merged]] = {
    "nothing": WHOLE,
    "a variable": replace(WHOLE, env=(*WHOLE.env, ("X", "1"))),
    "a mount": with_mounts(*PLAN.mounts, Mount("/tools", "/opt/tools")),
    "a mount over the visible library": with_mounts(*PLAN.mounts, Mount("/usr/local/vgpu", "/x")),
}


@pytest.mark.parametrize("added", HARMLESS)
def test_what_another_plugin_may_add(added: str) -> None:
    assert not list(differences.in_adjustment(PLAN, HARMLESS[added]))
    assert foreign_gpu(HARMLESS[added]) is None


def without(place: str) -> list[Mount]:
    return [mount for mount in PLAN.mounts if mount.destination != place]


@pytest.mark.parametrize("place", sorted(set(PLAN.files) - {plans.GRANT}))
def test_a_mount_that_the_created_container_lacks(place: str) -> None:
    for mounts in (without(place), [*without(place), Mount(place, "/elsewhere")]):
        assert not differences.has_mounts(PLAN, mounts)
    assert differences.has_mounts(PLAN, PLAN.mounts)


# --- GPUs of others


HOST = Host(frozenset({"nvidia.com/gpu=all"}), frozenset({195, 510}))
CAPABILITY = Device("/dev/nvidia-caps/nvidia-cap1", "c", 234, 1)


def brought(field: str, key: str, value: object) -> Merged:
    fields: dict[str, Any] = {field: (value,), "owners": Owners(**{field: {key: OTHER}})}  # type: ignore[arg-type]
    return Merged(ME, **fields)


BROUGHT: Final[Mapping[str, Merged]] = {
    "device /dev/nvidia0": brought("devices", GPU.path, GPU),
    f"device {CAPABILITY.path}": brought("devices", CAPABILITY.path, CAPABILITY),
    "mount /gpu": brought("mounts", "/gpu", Mount("/gpu", "/dev/nvidia1")),
    f"environment {VISIBLE}=all": brought("env", VISIBLE, (VISIBLE, "all")),
    "CDI device nvidia.com/gpu=all": brought(
        "cdi_names", "nvidia.com/gpu=all", "nvidia.com/gpu=all"
    ),
}


@pytest.mark.parametrize(("what", "found"), BROUGHT.items())
def test_a_gpu_that_another_plugin_brings(what: str, found: Merged) -> None:
    assert foreign_gpu(found, HOST) == ForeignGpu(OTHER, what)
    assert foreign_gpu(replace(found, me=OTHER), HOST) is None
    unowned = replace(found, owners=Owners())
    assert foreign_gpu(unowned, HOST) == ForeignGpu("", what)


RULES: Final[Mapping[str, CgroupRule]] = {
    "c 195:* rwm": CgroupRule("c", 195, None, "rwm"),
    "c 510:0 w": CgroupRule("c", 510, 0, "w"),
    "c *:* rw": CgroupRule("c", None, None, "rw"),
    "a *:*": CgroupRule("", None, None, ""),
    # These open none.
    "c 10:229 rwm": CgroupRule("c", 10, 229, "rwm"),
    "c *:* m": CgroupRule("c", None, None, "m"),
    "b 195:* rwm": CgroupRule("b", 195, None, "rwm"),
    "b *:*": CgroupRule("b", None, None, ""),
}
OPENS = ("c 195:* rwm", "c 510:0 w", "c *:* rw", "a *:*")


@pytest.mark.parametrize("text", RULES)
def test_a_cgroup_rule_that_opens_gpus(text: str) -> None:
    """The runtime does not report which plugin wrote it."""
    found = Merged(ME, cgroup_rules=(RULES[text],))
    assert host_names(found) == []
    expected = ForeignGpu("", f"the cgroup rule {text}") if text in OPENS else None
    assert foreign_gpu(found, HOST) == expected


def test_cdi_names_of_other_plugins_are_resolved_on_the_host() -> None:
    ours, theirs = "nvidia.com/gpu=GPU-1", "vendor.com/net=0"
    owners = Owners(cdi_names={ours: ME, theirs: OTHER})
    assert host_names(Merged(ME, cdi_names=(ours,), owners=owners)) is None
    assert host_names(Merged(ME, cdi_names=(ours, theirs), owners=owners)) == [theirs]
    assert host_names(Merged(ME, cdi_names=(ours,))) == [ours]


def test_changes_that_bring_no_gpu_are_accepted() -> None:
    harmless = Merged(
        ME,
        env=((VISIBLE, "none"), ("NVIDIA_DRIVER_CAPABILITIES", "all")),
        mounts=(Mount("/dev/nvidium/x", "/x"), Mount("/mnt", "/dev/shm")),
        devices=(Device("/dev/fuse", "c", 10, 229),),
        cdi_names=("vendor.com/net=0",),
    )
    assert foreign_gpu(harmless, HOST) is None
