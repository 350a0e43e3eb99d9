"""The edits of a CDI spec: what makes a GPU unusable, and what does not."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nri_plugin.host import cdi_reader
from nri_plugin.host.cdi_reader import Reader
from nri_plugin.policy.model import Device, Mount
from tests.nri_plugin.cdi.test_cdi_reader import node, spec
from tests.nri_plugin.cdi_nodes import CONTROL, DEVICES, NODES

BROKEN_EDITS: Mapping[str, tuple[Any, str]] = {
    "not an object": ([], "containerEdits: invalid type list: must be an object"),
    "env": ({"env": ["NOVALUE"]}, "containerEdits.env: invalid value 'NOVALUE'"),
    "env key": ({"env": ["=x"]}, "must be KEY=VALUE"),
    "relative": (
        {"deviceNodes": [{"path": "dev/x"}]},
        "deviceNodes[0].path: invalid value 'dev/x'",
    ),
    "absent": (
        {"deviceNodes": [{"path": "/dev/nvidia1", "hostPath": "/dev/gone"}]},
        "deviceNodes[0]: /dev/gone: No such file",
    ),
    "plain": (
        {"deviceNodes": [{"path": "/dev/nvidiactl", "hostPath": "/dev/plain"}]},
        "/dev/plain: must be a device node",
    ),
    "library": (
        {"mounts": [{"hostPath": "/gone", "containerPath": "/lib/libcuda.so.580"}]},
        "mounts[0]: /gone: No such file",
    ),
    "argument": (
        {"hooks": [{"hookName": "prestart", "path": "/x", "args": ["", 7]}]},
        "hooks[0].args: invalid value 7: must be a string",
    ),
    "numbers": (
        {"deviceNodes": [{"path": "/d", "type": "c", "major": -1, "minor": 0}]},
        "major: invalid value -1: must be an integer",
    ),
    "mount": ({"mounts": [{"hostPath": "/x"}]}, "mounts[0].containerPath: invalid value None"),
    "hook": (
        {"hooks": [{"hookName": "never", "path": "/x"}]},
        "hookName: invalid value 'never': must be one of prestart, createRuntime",
    ),
}


@pytest.mark.parametrize("case", BROKEN_EDITS)
def test_broken_edits_make_their_device_unusable(case: str, tmp_path: Path) -> None:
    edits, problem = BROKEN_EDITS[case]
    path = tmp_path / "spec.json"
    path.write_text(spec({"name": "bad", "containerEdits": edits}, {"name": "good"}))
    devices = cdi_reader.load([tmp_path], status=node).devices
    assert devices["good"].problem is None
    assert problem in str(devices["bad"].problem)
    path.write_text(spec({"name": "bad"}, containerEdits=edits))
    assert problem in str(cdi_reader.load([tmp_path], status=node).devices["bad"].problem)


DISPENSABLE: Mapping[str, Any] = {
    "a node of graphics": {"deviceNodes": [{"path": "/dev/dri/card0"}]},
    "a node that is none": {
        "deviceNodes": [{"path": "/dev/nvidia-fs0", "hostPath": "/etc/passwd"}]
    },
    "a program": {"mounts": [{"hostPath": "/gone", "containerPath": "/usr/bin/nvidia-smi"}]},
    "a path of no file": {"mounts": [{"hostPath": "/a\0b", "containerPath": "/etc/x"}]},
    "a socket": {"mounts": [{"hostPath": "/gone", "containerPath": "/run/x/socket"}]},
    "a library of video": {
        "mounts": [{"hostPath": "/gone", "containerPath": "/usr/lib/libnvcuvid.so.580"}]
    },
    "groups": {"additionalGids": [44, 105]},
    "what are no groups": {"additionalGids": "video"},
    "cache allocation": {"intelRdt": {"closID": "gpu", "enableMonitoring": True}},
}


@pytest.mark.parametrize("case", DISPENSABLE)
def test_what_no_program_needs_makes_no_gpu_unusable(case: str, tmp_path: Path) -> None:
    whole = {"deviceNodes": NODES, "annotations": {"a": "b"}}
    for common, own in ((whole, DISPENSABLE[case]), (DISPENSABLE[case], whole)):
        device = {"name": "G", "containerEdits": own, "annotations": {"a": "b"}}
        (tmp_path / "s.json").write_text(spec(device, cdiVersion="1.1.0", containerEdits=common))
        found = Reader([tmp_path]).load().devices["G"]
        assert found.problem is None
        assert {*found.own.devices, *found.common.devices} == {*DEVICES}
        assert found.own.mounts == found.common.mounts == ()


@pytest.mark.parametrize("lacking", ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"])
def test_a_device_without_the_drivers_nodes_is_unusable(lacking: str, tmp_path: Path) -> None:
    """nvidia-ctk leaves out what does not exist when it runs."""
    nodes = [node for node in NODES if node["path"] != lacking]
    (tmp_path / "s.json").write_text(spec({"name": "G", "containerEdits": {"deviceNodes": nodes}}))
    problem = str(cdi_reader.load([tmp_path]).devices["G"].problem)
    assert problem.startswith(
        f"deviceNodes: must contain {lacking.replace('nvidia0', 'nvidiaN')}, "
    )
    assert "nvidia-modprobe" in problem


def test_wsl_has_one_device_node(tmp_path: Path) -> None:
    edits = {"deviceNodes": [{"path": "/dev/dxg", "hostPath": "/dev/null"}]}
    (tmp_path / "s.json").write_text(spec({"name": "G", "containerEdits": edits}))
    assert cdi_reader.load([tmp_path]).devices["G"].problem is None


@pytest.mark.parametrize(
    ("gids", "mode", "given"),
    [([44], 0o660, 0o666), ([44], 0o640, 0o644), ([7], 0o660, 0o660), ([], 0o660, 0o660)],
)
def test_a_group_of_the_container_is_that_of_all_its_users(
    gids: list[int], mode: int, given: int, tmp_path: Path
) -> None:
    """NRI gives no process a group. A node's mode applies in the container alone."""
    gpu = {**NODES[0], "fileMode": mode | stat.S_IFCHR, "gid": 44}
    own = {"deviceNodes": [gpu, *CONTROL]}
    for common in ({}, {"additionalGids": gids}):
        edits = own if common else {**own, "additionalGids": gids}
        text = spec({"name": "G", "containerEdits": edits}, containerEdits=common)
        (tmp_path / "s.json").write_text(text)
        (device, *_) = cdi_reader.load([tmp_path]).devices["G"].own.devices
        assert device.file_mode == given


def test_defaults_and_block_devices(tmp_path: Path) -> None:
    edits = {
        "deviceNodes": [{"path": "/dev/sd"}],
        "mounts": [{"hostPath": "/a", "containerPath": "/b", "options": [""]}],
        "additionalGids": [],
    }
    (tmp_path / "s.json").write_text(spec({"name": "G", "containerEdits": edits}))
    own = cdi_reader.load([tmp_path], status=node).devices["G"].own
    assert own.devices == (Device("/dev/sd", "b", 8, 1),)
    assert own.mounts == (Mount("/b", "/a", ("ro", "nosuid", "nodev", "rbind", "rprivate")),)
