"""GPUs that other NRI plugins give to a container."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from nri_plugin.policy.merged import (
    CgroupRule,
    ForeignGpu,
    Host,
    Merged,
    Owners,
    foreign_gpu,
    host_names,
)
from nri_plugin.policy.model import Device, Mount

ME, OTHER = "50-gpuslice", "60-other"
GPU = Device("/dev/nvidia0", "c", 195, 0, 0o666)
HOST = Host(frozenset({"nvidia.com/gpu=all"}), frozenset({195, 510}))

BROUGHT: Mapping[str, Merged] = {
    "device /dev/nvidia0": Merged(
        ME, devices=(GPU,), owners=Owners(devices={"/dev/nvidia0": OTHER})
    ),
    "device /dev/nvidia-caps/nvidia-cap1": Merged(
        ME,
        devices=(Device("/dev/nvidia-caps/nvidia-cap1", "c", 234, 1),),
        owners=Owners(devices={"/dev/nvidia-caps/nvidia-cap1": OTHER}),
    ),
    "mount /gpu": Merged(
        ME, mounts=(Mount("/gpu", "/dev/nvidia1"),), owners=Owners(mounts={"/gpu": OTHER})
    ),
    "environment NVIDIA_VISIBLE_DEVICES=all": Merged(
        ME,
        env=(("NVIDIA_VISIBLE_DEVICES", "all"),),
        owners=Owners(env={"NVIDIA_VISIBLE_DEVICES": OTHER}),
    ),
    "CDI device nvidia.com/gpu=all": Merged(
        ME,
        cdi_names=("nvidia.com/gpu=all",),
        owners=Owners(cdi_names={"nvidia.com/gpu=all": OTHER}),
    ),
}


@pytest.mark.parametrize(("what", "found"), BROUGHT.items())
def test_a_gpu_that_another_plugin_brings(what: str, found: Merged) -> None:
    assert foreign_gpu(found, HOST) == ForeignGpu(OTHER, what)
    assert foreign_gpu(replace(found, me=OTHER), HOST) is None
    unowned = replace(found, owners=Owners())
    assert foreign_gpu(unowned, HOST) == ForeignGpu("", what)


RULES: Mapping[str, CgroupRule] = {
    "the cgroup rule c 195:* rwm": CgroupRule("c", 195, None, "rwm"),
    "the cgroup rule c 510:0 w": CgroupRule("c", 510, 0, "w"),
    "the cgroup rule c *:* rw": CgroupRule("c", None, None, "rw"),
    "the cgroup rule a *:*": CgroupRule("", None, None, ""),
}


@pytest.mark.parametrize(("what", "rule"), RULES.items())
def test_a_cgroup_rule_that_opens_gpus(what: str, rule: CgroupRule) -> None:
    """The runtime does not report which plugin wrote it."""
    found = Merged(ME, cgroup_rules=(rule,))
    assert host_names(found) == []
    assert foreign_gpu(found, HOST) == ForeignGpu("", what)


@pytest.mark.parametrize(
    "rule",
    [
        *(CgroupRule("c", 10, 229, "rwm"), CgroupRule("c", None, None, "m")),
        *(CgroupRule("b", 195, None, "rwm"), CgroupRule("b", None, None, "")),
    ],
)
def test_a_cgroup_rule_that_opens_none(rule: CgroupRule) -> None:
    assert foreign_gpu(Merged(ME, cgroup_rules=(rule,)), HOST) is None


def test_cdi_names_of_other_plugins_are_resolved_on_the_host() -> None:
    ours, theirs = "nvidia.com/gpu=GPU-1", "vendor.com/net=0"
    owners = Owners(cdi_names={ours: ME, theirs: OTHER})
    assert host_names(Merged(ME, cdi_names=(ours,), owners=owners)) is None
    assert host_names(Merged(ME, cdi_names=(ours, theirs), owners=owners)) == [theirs]
    assert host_names(Merged(ME, cdi_names=(ours,))) == [ours]


def test_changes_that_bring_no_gpu_are_accepted() -> None:
    harmless = Merged(
        ME,
        env=(("NVIDIA_VISIBLE_DEVICES", "none"), ("NVIDIA_DRIVER_CAPABILITIES", "all")),
        mounts=(Mount("/dev/nvidium/x", "/x"), Mount("/mnt", "/dev/shm")),
        devices=(Device("/dev/fuse", "c", 10, 229),),
        cdi_names=("vendor.com/net=0",),
    )
    assert foreign_gpu(harmless, HOST) is None
