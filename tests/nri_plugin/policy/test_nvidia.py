"""Which CDI names of other vendors inject a GPU: by their specs, else by their vendor."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nri_plugin.host import cdi_vendor
from nri_plugin.policy import nvidia


def host(path: str) -> os.stat_result:
    """A GPU's node under another name exists; nothing else does."""
    if path != "/dev/renamed":
        raise FileNotFoundError(2, "No such file or directory", path)
    fields: list[Any] = [stat.S_IFCHR | 0o666, *[0] * 9]
    return os.stat_result(fields, {"st_rdev": os.makedev(195, 0)})


def write(directory: Path, kind: str, edits: Any, common: Any = None, name: str = "0") -> None:
    spec = {"cdiVersion": "0.6.0", "kind": kind, "containerEdits": common or {}}
    spec["devices"] = [{"name": name, "containerEdits": edits}]
    (directory / f"{kind.replace('/', '-')}-{name}.json").write_text(json.dumps(spec))


NET = {"deviceNodes": [{"path": "/dev/infiniband/uverbs0", "major": 231}], "env": ["A=1"]}
GPU = {"deviceNodes": [{"path": "/dev/nvidia0"}]}
EDITS: Mapping[str, tuple[Any, bool]] = {
    "a node": (GPU, True),
    "its control node": ({"deviceNodes": [{"path": "/dev/nvidiactl"}]}, True),
    "a node, written otherwise": ({"deviceNodes": [{"path": "//dev/./nvidia0"}]}, True),
    "a node under another name": (
        {"deviceNodes": [{"path": "/dev/x", "hostPath": "/dev/nvidia0"}]},
        True,
    ),
    "the driver's number": ({"deviceNodes": [{"path": "/dev/x", "major": 195}]}, True),
    "the number of a node of the host's": ({"deviceNodes": [{"path": "/dev/renamed"}]}, True),
    "a mount of a node": (
        {"mounts": [{"hostPath": "/dev/nvidia0", "containerPath": "/x"}]},
        True,
    ),
    "the driver's library": (
        {"mounts": [{"hostPath": "/x/libcuda.so.580.1", "containerPath": "/usr/lib/libcuda.so.1"}]},
        True,
    ),
    "a request": ({"env": ["NVIDIA_VISIBLE_DEVICES=all"]}, True),
    "a field that we do not apply, beside a node": ({**GPU, "additionalGids": [44]}, True),
    "another device": (NET, False),
    "a library": ({"mounts": [{"hostPath": "/lib/x", "containerPath": "/lib/x"}]}, False),
    "no GPUs": ({"env": ["NVIDIA_VISIBLE_DEVICES=void"]}, False),
}


@pytest.mark.parametrize("vendor", ["acme.com", "nvidia.com", "k8s.gpu.nvidia.com"])
@pytest.mark.parametrize(("edits", "brings"), EDITS.values(), ids=EDITS)
def test_a_spec_decides_whether_its_cdi_name_brings_a_gpu(
    tmp_path: Path, vendor: str, edits: Any, brings: bool
) -> None:
    name = f"{vendor}/net=0"
    write(tmp_path, f"{vendor}/net", edits)
    assert cdi_vendor.by_name([tmp_path], [name], host) == ({name} if brings else set())


def test_a_name_that_brings_a_gpu_somewhere_brings_it(tmp_path: Path) -> None:
    """In the spec's edits for all devices, or in one directory of two."""
    places = [tmp_path / "0", tmp_path / "1"]
    for place, edits in zip(places, (NET, GPU), strict=True):
        place.mkdir()
        write(place, "acme.com/net", edits)
    write(tmp_path, "acme.com/net", NET, GPU)
    for directories in (places, places[::-1], [tmp_path]):
        assert cdi_vendor.by_name(directories, ["acme.com/net=0"], host) == {"acme.com/net=0"}


UNREADABLE: Mapping[str, str] = {
    "not there": "",
    "not JSON": "{",
    "not a spec": "[]",
    "of another device": '{"kind": "%s", "devices": [{"name": "1"}]}',
    "devices that are none": '{"kind": "%s", "devices": [7]}',
    "a node without a path": (
        '{"kind": "%s", "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{}]}}]}'
    ),
    "edits that are none": '{"kind": "%s", "devices": [{"name": "0", "containerEdits": [1]}]}',
}


@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize(
    ("vendor", "taken"),
    [
        *(("nvidia.com", True), ("management.nvidia.com", True), ("k8s.gpu.nvidia.com", True)),
        *(("acme.com", False), ("notnvidia.com", False), ("nvidia.com.acme.org", False)),
    ],
)
def test_what_cannot_be_read_is_judged_by_its_vendor(
    tmp_path: Path, text: str, vendor: str, taken: bool
) -> None:
    if text:
        (tmp_path / "spec.json").write_text(text.replace("%s", f"{vendor}/gpu"))
    name = f"{vendor}/gpu=0"
    directories = [tmp_path, tmp_path / "absent"]
    assert cdi_vendor.by_name(directories, [name], host) == ({name} if taken else set())


def test_the_drivers_numbers() -> None:
    text = "Character devices:\n  1 mem\n195 nvidia\n510 nvidia-uvm\n511 nvme\n\nBlock devices:\n"
    assert nvidia.driver_majors(text) == {195, 510}
    assert nvidia.driver_majors("") == {195}
    assert 195 in cdi_vendor.majors()
