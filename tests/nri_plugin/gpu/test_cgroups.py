"""The container that a process's control groups name."""

from __future__ import annotations

import pytest

from nri_plugin.gpu.measuring import container_of

ID = "4f0d" * 16
OTHER = "5e1c" * 16
POD = "kubepods-burstable-pod3b6c9d1e_0f2a_4c55_9d7e_1a2b3c4d5e6f.slice"
UID = "pod3b6c9d1e-0f2a-4c55-9d7e-1a2b3c4d5e6f"


@pytest.mark.parametrize(
    "cgroup",
    [
        f"0::/kubepods.slice/kubepods-burstable.slice/{POD}/cri-containerd-{ID}.scope",
        f"0::/../../{POD}/cri-containerd-{ID}.scope",
        f"0::/kubepods/burstable/{UID}/{ID}",
        f"0::/kubepods/burstable/{UID}/{ID}/jobs/one",
        f"0::/system.slice/{POD}:cri-containerd:{ID}",
        f"0::/{POD}/crio-{ID}.scope",
        f"12:pids:/user.slice\n4:memory:/kubepods/burstable/{UID}/{ID}\n1:name=systemd:/init.scope",
        f"9:devices:/kubepods.slice/{POD}/cri-containerd-{ID}.scope",
    ],
    ids=[
        "systemd",
        "systemd, seen from another cgroup namespace",
        "cgroupfs",
        "groups of the container's own",
        "systemd's names by cgroupfs",
        "CRI-O",
        "version 1, cgroupfs",
        "version 1, systemd",
    ],
)
def test_the_container_of_a_cgroup_is_found(cgroup: str) -> None:
    assert container_of(cgroup, {ID, OTHER}) == ID


@pytest.mark.parametrize("cgroup", ["", "0::/\n", f"0::/system.slice/{POD}", f"0::/x/{ID}x", "::"])
def test_other_cgroups_belong_to_no_container(cgroup: str) -> None:
    assert container_of(cgroup, {ID}) is None


def test_an_id_may_have_dashes() -> None:
    assert container_of("0::/kubepods/pod1/my-container-1", {"my-container-1"}) == "my-container-1"
