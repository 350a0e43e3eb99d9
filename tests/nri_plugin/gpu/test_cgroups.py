"""Control groups: which container a process is in, and where its group and the controllers are."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice.gpu import cgroups

ID, OTHER, DASHED = "4f0d" * 16, "5e1c" * 16, "my-container-1"
POD = "kubepods-burstable-pod3b6c9d1e_0f2a_4c55_9d7e_1a2b3c4d5e6f.slice"
SYSTEMD = f"kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope"
UID = "pod3b6c9d1e-0f2a-4c55-9d7e-1a2b3c4d5e6f"
CGROUPS = {
    "systemd": f"0::/kubepods.slice/kubepods-burstable.slice/{POD}/cri-containerd-{ID}.scope",
    "cgroupfs": f"0::/kubepods/burstable/{UID}/{ID}",
    "cgroupfs, an id with dashes": f"0::/kubepods/burstable/{UID}/{DASHED}",
    "groups of the container's own": f"0::/kubepods/burstable/{UID}/{ID}/jobs/one",
    "systemd's names by cgroupfs": f"0::/system.slice/{POD}:cri-containerd:{ID}",
    "version 1, cgroupfs": (
        f"12:pids:/user.slice\n4:memory:/kubepods/burstable/{UID}/{ID}\n1:name=systemd:/init.scope"
    ),
}


@pytest.mark.parametrize("cgroup", CGROUPS.values(), ids=CGROUPS)
def test_the_container_of_a_cgroup_is_found(cgroup: str) -> None:
    assert cgroups.container_of(cgroup, {ID, OTHER, DASHED}) == (DASHED if DASHED in cgroup else ID)


@pytest.mark.parametrize("cgroup", ["", "0::/\n", f"0::/system.slice/{POD}", f"0::/x/{ID}x", "::"])
def test_other_cgroups_belong_to_no_container(cgroup: str) -> None:
    assert cgroups.container_of(cgroup, {ID}) is None


@pytest.mark.parametrize(
    ("text", "group"),
    [
        (f"0::/{SYSTEMD}", SYSTEMD),
        (f"0::/{SYSTEMD}/init.scope", SYSTEMD),
        (f"0::/kubepods/pod1/{ID}", f"kubepods/pod1/{ID}"),
        (f"0::/a.slice:cri-containerd:{ID}", f"a.slice:cri-containerd:{ID}"),
        (f"5:pids:/x\n1:name=systemd:/{SYSTEMD}\n0::/{SYSTEMD}", SYSTEMD),
        (f"0::/{SYSTEMD}\n5:cpu,cpuacct:/x", SYSTEMD),
        (f"0::/{'d0' * 32}", None),
        (f"0::/../{SYSTEMD}", None),
        (f"0::/{ID}/x/../..", None),
        ("", None),
    ],
)
def test_a_containers_group_is_found_with_each_cgroup_driver(text: str, group: str | None) -> None:
    root = Path("/sys/fs/cgroup")
    assert cgroups.of_container(text, root, ID) == (root / group if group else None)


def test_a_hierarchy_of_v1_can_stand_for_v2() -> None:
    root = Path("/sys/fs/cgroup/pids")
    assert cgroups.directory("5:cpu,pids:/x\n0::/y", root) == root / "x"


def test_dmem_is_enabled_only_where_it_lacks_and_counts(tmp_path: Path) -> None:
    group = tmp_path / "kubepods/pod1/leaf"
    group.mkdir(parents=True)
    controls = [
        tmp_path / each / "cgroup.subtree_control" for each in ("", "kubepods", "kubepods/pod1")
    ]
    for control in controls:
        control.write_text("cpu memory\n")
    controls[1].write_text("cpu dmem\n")
    cgroups.enable_dmem(tmp_path, group, ["0000:3b:00.0"])
    (tmp_path / "dmem.capacity").write_text("nvidia/0000:3c:00.0/vidmem 5\n")
    cgroups.enable_dmem(tmp_path, group, ["0000:3b:00.0", ""])
    assert [control.read_text() for control in controls][::2] == ["cpu memory\n"] * 2
    (tmp_path / "dmem.capacity").write_text("nvidia/0000:3b:00.0/vidmem 5\n")
    cgroups.enable_dmem(tmp_path, group, ["0000:3b:00.0"])
    assert [control.read_text() for control in controls] == ["+dmem", "cpu dmem\n", "+dmem"]
