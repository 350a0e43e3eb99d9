"""The edits of a CDI spec: what makes a GPU unusable, and what does not."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nri_plugin.host import cdi_reader
from nri_plugin.policy.model import Device, Mount
from tests.nri_plugin.cdi.specs import Edits, gpu, hook, mount, node, read, spec, status
from tests.nri_plugin.cdi_nodes import CONTROL, DEVICES, NODES

BROKEN_EDITS: Mapping[str, tuple[Any, str]] = {
    "not an object": ([], "containerEdits: invalid type list: must be an object"),
    "env": ({"env": ["NOVALUE"]}, "containerEdits.env: invalid value 'NOVALUE'"),
    "env key": ({"env": ["=x"]}, "must be KEY=VALUE"),
    "relative": (node("dev/x"), "deviceNodes[0].path: invalid value 'dev/x'"),
    "absent": (node("/dev/nvidia1", hostPath="/dev/gone"), "deviceNodes[0]: /dev/gone: No such"),
    "plain": (node("/dev/nvidiactl", hostPath="/dev/plain"), "/dev/plain: must be a device node"),
    "library": (mount("/gone", "/lib/libcuda.so.580"), "mounts[0]: /gone: No such file"),
    "argument": (hook("prestart", ["", 7]), "hooks[0].args: invalid value 7: must be a string"),
    "numbers": (node("/d", type="c", major=-1, minor=0), "major: invalid value -1: must be"),
    "mount": ({"mounts": [{"hostPath": "/x"}]}, "mounts[0].containerPath: invalid value None"),
    "hook": (hook("never"), "hookName: invalid value 'never': must be one of prestart, "),
}


@pytest.mark.parametrize("case", BROKEN_EDITS)
def test_broken_edits_make_their_device_unusable(case: str, tmp_path: Path) -> None:
    edits, problem = BROKEN_EDITS[case]
    text = spec({"name": "bad", "containerEdits": edits}, {"name": "good"})
    assert problem in str(read(tmp_path, text, "bad", status).problem)
    assert cdi_reader.load([tmp_path], status=status).devices["good"].problem is None
    text = spec({"name": "bad"}, containerEdits=edits)
    assert problem in str(read(tmp_path, text, "bad", status).problem)


DISPENSABLE: Mapping[str, Edits] = {
    "a node of graphics": node("/dev/dri/card0"),
    "a node whose major number is not known": node("/dev/nvidia-x", type="c", minor=1),
    "a node that is none": node("/dev/nvidia-fs0", hostPath="/etc/passwd"),
    "a program": mount("/gone", "/usr/bin/nvidia-smi"),
    "a path of no file": mount("/a\0b", "/etc/x"),
    "a socket": mount("/gone", "/run/x/socket"),
    "a library of video": mount("/gone", "/usr/lib/libnvcuvid.so.580"),
    "groups": {"additionalGids": [44, 105]},
    "what are no groups": {"additionalGids": "video"},
    "cache allocation": {"intelRdt": {"closID": "gpu", "enableMonitoring": True}},
}


@pytest.mark.parametrize("case", DISPENSABLE)
def test_what_no_program_needs_makes_no_gpu_unusable(case: str, tmp_path: Path) -> None:
    whole = {"deviceNodes": NODES, "annotations": {"a": "b"}}
    for common, own in ((whole, DISPENSABLE[case]), (DISPENSABLE[case], whole)):
        device = {"name": "G", "containerEdits": own, "annotations": {"a": "b"}}
        found = read(tmp_path, spec(device, cdiVersion="1.1.0", containerEdits=common))
        assert found.problem is None
        assert {*found.own.devices, *found.common.devices} == {*DEVICES}
        assert found.own.mounts == found.common.mounts == ()


@pytest.mark.parametrize("lacking", ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"])
def test_a_device_without_the_drivers_nodes_is_unusable(lacking: str, tmp_path: Path) -> None:
    """nvidia-ctk leaves out a node that does not exist when it runs."""
    nodes = [each for each in NODES if each["path"] != lacking]
    problem = str(read(tmp_path, gpu({"deviceNodes": nodes})).problem)
    place = lacking.replace("nvidia0", "nvidiaN")
    assert problem.startswith(f"deviceNodes: must contain {place}, ")
    assert "nvidia-modprobe" in problem


def test_wsl_has_one_device_node(tmp_path: Path) -> None:
    assert read(tmp_path, gpu(node("/dev/dxg", hostPath="/dev/null"))).problem is None


@pytest.mark.parametrize(
    ("gids", "mode", "given"),
    [([44], 0o660, 0o666), ([44], 0o640, 0o644), ([7], 0o660, 0o660), ([], 0o660, 0o660)],
)
def test_a_group_of_the_container_is_that_of_all_its_users(
    gids: list[int], mode: int, given: int, tmp_path: Path
) -> None:
    """A CDI spec can add a device node's group to the container's processes. NRI cannot. Therefore
    the device node's mode in the container gives the group's rights to all users."""
    own = {"deviceNodes": [{**NODES[0], "fileMode": mode | stat.S_IFCHR, "gid": 44}, *CONTROL]}
    groups = {"additionalGids": gids}
    for text in (gpu({**own, **groups}), gpu(own, containerEdits=groups)):
        assert read(tmp_path, text).own.devices[0].file_mode == given


def test_defaults_and_block_devices(tmp_path: Path) -> None:
    edits = {**node("/dev/sd"), **mount("/a", "/b"), "additionalGids": []}
    edits["mounts"][0]["options"] = [""]
    own = read(tmp_path, gpu(edits), status=status).own
    assert own.devices == (Device("/dev/sd", "b", 8, 1),)
    assert own.mounts == (Mount("/b", "/a", ("ro", "nosuid", "nodev", "rbind", "rprivate")),)
