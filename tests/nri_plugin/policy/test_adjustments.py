"""A plan is compared with what the container has. Other NRI plugins' GPUs are found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from gpuslice.contract import names
from nri_plugin.host import cdi_vendor
from nri_plugin.policy import differences, merged, nvidia
from nri_plugin.policy import plan as plans
from nri_plugin.policy.merged import CgroupRule, ForeignGpu, Merged, Owners, foreign_gpu, host_names
from nri_plugin.policy.model import Device, Hook, HookStage, Mount, Share
from tests.nri_plugin.cdi.specs import mount, node, spec, status
from tests.nri_plugin.host_files import put
from tests.nri_plugin.objects import planned

ME, OTHER = "50-gpuslice", "60-other"
GPU = Device("/dev/nvidia0", "c", 195, 0, 0o666)
HOOK = Hook(HookStage.CREATE_CONTAINER, "/usr/bin/nvidia-ctk", ("nvidia-ctk",))
PLAN = replace(planned("c1", (Share("GPU-1", 0, 1, 1),)), devices=(GPU,), hooks=(HOOK,))
MOUNTS = {mount.destination: mount for mount in PLAN.mounts}
PRELOAD = MOUNTS[names.CONTAINER_PRELOAD]
REST = tuple(mount for mount in PLAN.mounts if mount is not PRELOAD)
OWNERS = Owners(
    env=dict.fromkeys(dict(PLAN.env), ME),
    mounts=dict.fromkeys(MOUNTS, ME),
    devices={GPU.path: ME},
    hooks=("10-early", ME),
)
WHOLE = Merged(
    ME, PLAN.env, PLAN.mounts, (GPU._replace(file_mode=None),), PLAN.hooks, owners=OWNERS
)
"""The adjustment that the runtime merged from all plugins. Here all of it is the agent's."""
VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def owners(**changes: Any) -> Merged:
    return replace(WHOLE, owners=replace(OWNERS, **changes))


def of_another(field: str, key: str) -> Merged:
    return owners(**{field: {**getattr(OWNERS, field), key: OTHER}})


def mounts(*more: Mount, rest: Sequence[Mount] = PLAN.mounts) -> Merged:
    return replace(WHOLE, mounts=(*rest, *more))


ELSEWHERE = PRELOAD._replace(source="/evil", destination="/etc/x/../ld.so.preload")
AT_VALIDATION: Final[Mapping[str, Merged]] = {
    f"environment {VISIBLE} is 'all' instead of 'GPU-1'": replace(
        WHOLE, env=(*PLAN.env, (VISIBLE, "all"))
    ),
    f"environment {VISIBLE} is None": replace(WHOLE, env=()),
    f"environment {VISIBLE} was set by 60-other": of_another("env", VISIBLE),
    f"environment {VISIBLE} was set by no plugin": owners(env={}),
    "mount /etc/ld.so.preload was removed": mounts(rest=REST),
    "mount /etc/ld.so.preload was removed or": mounts(ELSEWHERE),
    "mount /etc/ld.so.preload has the options bind": mounts(
        PRELOAD._replace(options=("bind",)), rest=REST
    ),
    "mount /etc/ld.so.preload was set by 60-other": of_another("mounts", "/etc/ld.so.preload"),
    "mount /etc hides /etc/ld.so.preload": mounts(Mount("/etc", "/x")),
    "mount /.gpuslice/x hides /.gpuslice": mounts(Mount("/.gpuslice/x", "/x")),
    "device /dev/nvidia0 was removed": replace(WHOLE, devices=()),
    "device /dev/nvidia0 was removed or replaced": replace(WHOLE, devices=(GPU._replace(minor=1),)),
    "device /dev/nvidia0 was set by 60-other": of_another("devices", "/dev/nvidia0"),
    "createContainer hook /usr/bin/nvidia-ctk was removed": replace(WHOLE, hooks=()),
    "createContainer hook /usr/bin/nvidia-ctk was": owners(hooks=("10-early",)),
}


@pytest.mark.parametrize(("text", "found"), AT_VALIDATION.items())
def test_what_another_plugin_changed(text: str, found: Merged) -> None:
    assert " ".join(next(differences.in_adjustment(PLAN, found))).startswith(text)


def test_what_another_plugin_may_add() -> None:
    """Another plugin may add variables and mounts, even over the library's path for HAMi users."""
    more = mounts(Mount("/tools", "/opt/tools"), Mount("/usr/local/vgpu", "/x"))
    for found in (WHOLE, replace(more, env=(*WHOLE.env, ("X", "1")))):
        assert not list(differences.in_adjustment(PLAN, found))
        assert foreign_gpu(found) is None


@pytest.mark.parametrize("place", sorted(set(PLAN.files) - {plans.GRANT}))
def test_a_mount_that_the_created_container_lacks(place: str) -> None:
    without = [mount for mount in PLAN.mounts if mount.destination != place]
    for found in (without, [*without, Mount(place, "/elsewhere")]):
        assert not differences.has_mounts(PLAN, found)
    assert differences.has_mounts(PLAN, PLAN.mounts)


HOST = merged.Host(frozenset({"nvidia.com/gpu=all"}), frozenset({195, 510}))
CAPABILITY = Device("/dev/nvidia-caps/nvidia-cap1", "c", 234, 1)
CDI_NAME = "nvidia.com/gpu=all"
BROUGHT: Final[Mapping[str, tuple[str, str, object]]] = {
    "device /dev/nvidia0": ("devices", GPU.path, GPU),
    f"device {CAPABILITY.path}": ("devices", CAPABILITY.path, CAPABILITY),
    "mount /gpu": ("mounts", "/gpu", Mount("/gpu", "/dev/nvidia1")),
    f"environment {VISIBLE}=all": ("env", VISIBLE, (VISIBLE, "all")),
    f"CDI device {CDI_NAME}": ("cdi_names", CDI_NAME, CDI_NAME),
}


@pytest.mark.parametrize("what", BROUGHT)
def test_a_gpu_that_another_plugin_brings(what: str) -> None:
    field, key, value = BROUGHT[what]
    brought: dict[str, Any] = {field: (value,)}
    owned: dict[str, Any] = {field: {key: OTHER}}
    found = Merged(ME, **brought, owners=Owners(**owned))
    assert foreign_gpu(found, HOST) == ForeignGpu(OTHER, what)
    assert foreign_gpu(replace(found, owners=Owners()), HOST) == ForeignGpu("", what)
    assert foreign_gpu(replace(found, me=OTHER), HOST) is None


RULES: Final[Mapping[str, tuple[CgroupRule, bool]]] = {
    "c 195:* rwm": (CgroupRule("c", 195, None, "rwm"), True),
    "c 510:0 w": (CgroupRule("c", 510, 0, "w"), True),
    "c *:* rw": (CgroupRule("c", None, None, "rw"), True),
    "a *:*": (CgroupRule("", None, None, ""), True),
    "c 10:229 rwm": (CgroupRule("c", 10, 229, "rwm"), False),
    "c *:* m": (CgroupRule("c", None, None, "m"), False),
    "b 195:* rwm": (CgroupRule("b", 195, None, "rwm"), False),
    "b *:*": (CgroupRule("b", None, None, ""), False),
}


@pytest.mark.parametrize("text", RULES)
def test_a_cgroup_rule_that_opens_gpus(text: str) -> None:
    """The runtime does not report which plugin wrote the rule."""
    rule, opens = RULES[text]
    found = Merged(ME, cgroup_rules=(rule,))
    assert host_names(found) == []
    expected = ForeignGpu("", f"the cgroup rule {text}") if opens else None
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
        mounts=(Mount("/dev/nvidium/x", "/x"), Mount("/mnt/nvidia", "/dev/shm")),
        devices=(Device("/dev/fuse", "c", 10, 229),),
        cdi_names=("vendor.com/net=0",),
    )
    assert foreign_gpu(harmless, HOST) is None


def write(directory: Path, kind: str, edits: Any, common: Any = None) -> None:
    device = {"name": "0", "containerEdits": edits}
    put(directory / "spec.json", spec(device, kind=kind, containerEdits=common or {}))


NET = {**node("/dev/infiniband/uverbs0", major=231), "env": ["A=1"]}
NODE = node("/dev/nvidia0")
EDITS: Mapping[str, tuple[Any, bool]] = {
    "a node": (NODE, True),
    "its control node": (node("/dev/nvidiactl"), True),
    "a node, written otherwise": (node("//dev/./nvidia0"), True),
    "a node under another name": (node("/dev/x", hostPath="/dev/nvidia0"), True),
    "the driver's number": (node("/dev/x", major=195), True),
    "the number of a node of the host's": (node("/dev/host0"), True),
    "the number of a node of the host's, not in the spec": (node("/dev/host0", major=0), True),
    "a mount of a node": (mount("/dev/nvidia0", "/x"), True),
    "the driver's library": (mount("/x/libcuda.so.580.1", "/usr/lib/libcuda.so.1"), True),
    "a request": ({"env": ["NVIDIA_VISIBLE_DEVICES=all"]}, True),
    "a field that we do not apply, beside a node": ({**NODE, "additionalGids": [44]}, True),
    "another device": (NET, False),
    "a library": (mount("/lib/x", "/lib/x"), False),
    "no GPUs": ({"env": ["NVIDIA_VISIBLE_DEVICES=void"]}, False),
}


@pytest.mark.parametrize("vendor", ["acme.com", "nvidia.com", "k8s.gpu.nvidia.com"])
@pytest.mark.parametrize(("edits", "brings"), EDITS.values(), ids=EDITS)
def test_a_cdi_name_brings_a_gpu(tmp_path: Path, vendor: str, edits: Any, brings: bool) -> None:
    name = f"{vendor}/net=0"
    write(tmp_path, f"{vendor}/net", edits)
    assert cdi_vendor.by_name([tmp_path], [name, "b/x=0"], status) == ({name} if brings else set())


def test_a_cdi_name_counts_if_one_of_its_specs_has_a_gpu(tmp_path: Path) -> None:
    """The GPU may be in the spec's edits for all devices, or in only one of two directories."""
    places = [tmp_path / "0", tmp_path / "1"]
    for place, edits in zip(places, (NET, NODE), strict=True):
        write(place, "acme.com/net", edits)
    write(tmp_path, "acme.com/net", NET, NODE)
    for directories in (places, places[::-1], [tmp_path]):
        assert cdi_vendor.by_name(directories, ["acme.com/net=0"], status) == {"acme.com/net=0"}
    write(places[0], "nvidia.com/net", NET)
    put(places[1] / "spec.json", (OF_KIND + "[7]}") % "nvidia.com/net")
    assert cdi_vendor.by_name(places, ["nvidia.com/net=0"], status), "one of them is unreadable"


OF_KIND = '{"kind": "%s", "devices": '
UNREADABLE: Mapping[str, str] = {
    "not there": "",
    "not JSON": "{",
    "not a spec": "[]",
    "of another device": OF_KIND + '[{"name": "1"}]}',
    "devices that are none": OF_KIND + "[7]}",
    "a node without a path": OF_KIND + '[{"name": "0", "containerEdits": {"deviceNodes": [{}]}}]}',
    "edits that are none": OF_KIND + '[{"name": "0", "containerEdits": [1]}]}',
}
OTHERS = ("acme.com", "notnvidia.com", "nvidia.com.acme.org")


@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize(
    "vendor", ["nvidia.com", "management.nvidia.com", "k8s.gpu.nvidia.com", *OTHERS]
)
def test_an_unreadable_spec_is_judged_by_vendor(tmp_path: Path, text: str, vendor: str) -> None:
    if text:
        (tmp_path / "spec.json").write_text(text.replace("%s", f"{vendor}/gpu"))
    found = cdi_vendor.by_name([tmp_path, tmp_path / "absent"], [f"{vendor}/gpu=0"], status)
    assert found == (set() if vendor in OTHERS else {f"{vendor}/gpu=0"})


def test_the_drivers_numbers() -> None:
    text = "Character devices:\n  1 mem\n195 nvidia\n510 nvidia-uvm\n511 nvme\n\nBlock devices:\n"
    assert nvidia.driver_majors(text) == {195, 510}
    assert nvidia.driver_majors("") == {195}
    assert 195 in cdi_vendor.majors()
