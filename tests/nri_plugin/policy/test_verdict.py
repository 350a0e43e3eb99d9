"""Changes of a container by other plugins, and the verdict on each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from nri_plugin.policy.model import Adjustment, Device, Hook, HookStage, Mount
from nri_plugin.policy.verdict import (
    CgroupRule,
    ForeignGpu,
    Host,
    Merged,
    Owners,
    foreign_gpu,
    host_names,
    lost,
)

ME, OTHER = "50-gpuslice", "60-other"
RUN = "/run/gpuslice/c1"
ENV = (("NVIDIA_VISIBLE_DEVICES", "GPU-a"), ("CUDA_DEVICE_MEMORY_LIMIT_0", "1"))
PRELOAD = Mount("/etc/ld.so.preload", f"{RUN}/preload", ("bind", "ro"))
MOUNTS = (
    Mount("/.gpuslice", RUN, ("bind", "ro")),
    PRELOAD,
    Mount("/usr/local/vgpu/libvgpu.so", "/store/libvgpu.so", ("bind", "ro")),
)
GPU = Device("/dev/nvidia0", "c", 195, 0, 0o666)
HOOK = Hook(HookStage.CREATE_CONTAINER, "/usr/bin/nvidia-ctk", ("nvidia-ctk",))
OURS = Adjustment(ENV, "c1", False, (), MOUNTS, (GPU,), (HOOK,))
NO_GPU = Adjustment((("NVIDIA_VISIBLE_DEVICES", "void"),))


def merged(wanted: Adjustment) -> Merged:
    """The agent's own answer, with the agent as owner."""
    return Merged(
        wanted.env,
        wanted.mounts,
        tuple(device._replace(file_mode=None) for device in wanted.devices),
        wanted.hooks,
        (),
        Owners(
            env={key: ME for key, _ in wanted.env},
            mounts={mount.destination: ME for mount in wanted.mounts},
            devices={device.path: ME for device in wanted.devices},
            hooks=("10-early", ME),
        ),
    )


WHOLE = merged(OURS)


def owned_by_another(field: str, key: str) -> Merged:
    changes: dict[str, Any] = {field: {**getattr(WHOLE.owners, field), key: OTHER}}
    return replace(WHOLE, owners=replace(WHOLE.owners, **changes))


def test_harmless_changes_of_other_plugins_are_accepted() -> None:
    tools = Mount("/tools", "/opt/tools")
    more = replace(WHOLE, env=(*WHOLE.env, ("X", "1")), mounts=(*WHOLE.mounts, tools))
    assert lost(OURS, more, ME) is None
    assert lost(NO_GPU, replace(merged(NO_GPU), mounts=(tools,)), ME) is None


REST = tuple(mount for mount in MOUNTS if mount is not PRELOAD)
CHANGED: Mapping[str, Merged] = {
    "environment NVIDIA_VISIBLE_DEVICES is 'all' instead of 'GPU-a'": replace(
        WHOLE, env=(*ENV, ("NVIDIA_VISIBLE_DEVICES", "all"))
    ),
    "environment NVIDIA_VISIBLE_DEVICES is None": replace(WHOLE, env=()),
    "environment NVIDIA_VISIBLE_DEVICES was set by 60-other": owned_by_another(
        "env", "NVIDIA_VISIBLE_DEVICES"
    ),
    "environment NVIDIA_VISIBLE_DEVICES was set by no plugin": replace(WHOLE, owners=Owners()),
    "mount /etc/ld.so.preload was removed": replace(WHOLE, mounts=REST),
    "mount /etc/ld.so.preload was removed or": replace(
        WHOLE,
        mounts=(*MOUNTS, PRELOAD._replace(source="/evil", destination="/etc/x/../ld.so.preload")),
    ),
    "mount /etc/ld.so.preload has the options bind": replace(
        WHOLE, mounts=(*REST, PRELOAD._replace(options=("bind",)))
    ),
    "mount /etc/ld.so.preload was set by 60-other": owned_by_another(
        "mounts", "/etc/ld.so.preload"
    ),
    "mount /etc hides /etc/ld.so.preload": replace(WHOLE, mounts=(*MOUNTS, Mount("/etc", "/x"))),
    "mount /.gpuslice/x hides /.gpuslice": replace(
        WHOLE, mounts=(*MOUNTS, Mount("/.gpuslice/x", "/x"))
    ),
    "device /dev/nvidia0 was removed": replace(WHOLE, devices=()),
    "device /dev/nvidia0 was removed or replaced": replace(WHOLE, devices=(GPU._replace(minor=1),)),
    "device /dev/nvidia0 was set by 60-other": owned_by_another("devices", "/dev/nvidia0"),
    "createContainer hook /usr/bin/nvidia-ctk was removed": replace(WHOLE, hooks=()),
    "createContainer hook /usr/bin/nvidia-ctk was": replace(
        WHOLE, owners=replace(WHOLE.owners, hooks=("10-early",))
    ),
}


@pytest.mark.parametrize(("text", "found"), CHANGED.items())
def test_a_changed_adjustment_is_reported(text: str, found: Merged) -> None:
    problem = lost(OURS, found, ME)
    assert problem is not None and problem.startswith(text)


def test_a_mount_over_the_visible_library_is_accepted() -> None:
    over = Mount("/usr/local/vgpu", "/x")
    assert lost(OURS, replace(WHOLE, mounts=(*MOUNTS, over)), ME) is None


HOST = Host(frozenset({"nvidia.com/gpu=all"}), frozenset({195, 510}))

BROUGHT: Mapping[str, Merged] = {
    "device /dev/nvidia0": Merged(devices=(GPU,), owners=Owners(devices={"/dev/nvidia0": OTHER})),
    "device /dev/gpu": Merged(
        devices=(GPU._replace(path="/dev/gpu"),), owners=Owners(devices={"/dev/gpu": OTHER})
    ),
    "device /dev/nvidia-caps/nvidia-cap1": Merged(
        devices=(Device("/dev/nvidia-caps/nvidia-cap1", "c", 234, 1),),
        owners=Owners(devices={"/dev/nvidia-caps/nvidia-cap1": OTHER}),
    ),
    "mount /dev/nvidia1": Merged(
        mounts=(Mount("/dev/nvidia1", "/x"),), owners=Owners(mounts={"/dev/nvidia1": OTHER})
    ),
    "mount /gpu": Merged(
        mounts=(Mount("/gpu", "/dev/nvidia1"),), owners=Owners(mounts={"/gpu": OTHER})
    ),
    "environment NVIDIA_VISIBLE_DEVICES=all": Merged(
        env=(("NVIDIA_VISIBLE_DEVICES", "all"),),
        owners=Owners(env={"NVIDIA_VISIBLE_DEVICES": OTHER}),
    ),
    "CDI device nvidia.com/gpu=all": Merged(
        cdi_names=("nvidia.com/gpu=all",), owners=Owners(cdi_names={"nvidia.com/gpu=all": OTHER})
    ),
}


@pytest.mark.parametrize(("what", "found"), BROUGHT.items())
def test_a_gpu_that_another_plugin_brings(what: str, found: Merged) -> None:
    assert foreign_gpu(found, ME, HOST) == ForeignGpu(OTHER, what)
    assert foreign_gpu(found, OTHER, HOST) is None
    unowned = replace(found, owners=Owners())
    assert foreign_gpu(unowned, ME, HOST) == ForeignGpu("", what)


RULES: Mapping[str, CgroupRule] = {
    "the cgroup rule c 195:* rwm": CgroupRule("c", 195, None, "rwm"),
    "the cgroup rule c 510:0 w": CgroupRule("c", 510, 0, "w"),
    "the cgroup rule c *:* rw": CgroupRule("c", None, None, "rw"),
    "the cgroup rule a *:*": CgroupRule("", None, None, ""),
}


@pytest.mark.parametrize(("what", "rule"), RULES.items())
def test_a_cgroup_rule_that_opens_gpus(what: str, rule: CgroupRule) -> None:
    """The runtime does not report which plugin wrote it."""
    found = Merged(cgroup_rules=(rule,))
    assert host_names(found, ME) == []
    assert foreign_gpu(found, ME, HOST) == ForeignGpu("", what)


@pytest.mark.parametrize(
    "rule",
    [
        *(CgroupRule("c", 10, 229, "rwm"), CgroupRule("c", None, None, "m")),
        *(CgroupRule("b", 195, None, "rwm"), CgroupRule("b", None, None, "")),
    ],
)
def test_a_cgroup_rule_that_opens_none(rule: CgroupRule) -> None:
    assert foreign_gpu(Merged(cgroup_rules=(rule,)), ME, HOST) is None


def test_cdi_names_of_other_plugins_are_resolved_on_the_host() -> None:
    ours, theirs = "nvidia.com/gpu=GPU-1", "vendor.com/net=0"
    owners = Owners(cdi_names={ours: ME, theirs: OTHER})
    assert host_names(Merged(cdi_names=(ours,), owners=owners), ME) is None
    assert host_names(Merged(cdi_names=(ours, theirs), owners=owners), ME) == [theirs]
    assert host_names(Merged(cdi_names=(ours,)), ME) == [ours]


def test_changes_that_bring_no_gpu_are_accepted() -> None:
    harmless = Merged(
        env=(("NVIDIA_VISIBLE_DEVICES", "none"), ("NVIDIA_DRIVER_CAPABILITIES", "all")),
        mounts=(Mount("/dev/nvidium/x", "/x"), Mount("/mnt", "/dev/shm")),
        devices=(Device("/dev/fuse", "c", 10, 229),),
        cdi_names=("vendor.com/net=0",),
    )
    assert foreign_gpu(harmless, ME, HOST) is None
    assert foreign_gpu(WHOLE, ME) is None
