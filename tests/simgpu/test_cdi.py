"""The CDI spec: a device has one GPU's socket and nothing of its neighbour."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from simgpu import cdi, config, device_nodes

HOST = config.load(config.DEFAULT_FILE)
SOCKETS = {gpu.minor: Path(f"/d/gpus/{gpu.minor}.sock") for gpu in HOST.gpus}
READ_ONLY = ["bind", "ro", "nosuid", "nodev"]


def driver_in(directory: Path) -> cdi.Driver:
    return cdi.Driver(
        directory / "libcuda.so.1", directory / "libnvidia-ml.so.1", directory / "nvidia-smi"
    )


def test_a_device_is_one_gpu_and_brings_the_driver(tmp_path: Path) -> None:
    def mount(host: object, inside: str, *options: str) -> dict[str, Any]:
        return {"hostPath": str(host), "containerPath": inside, "options": [*READ_ONLY, *options]}

    libraries = cdi.library_dir()
    assert cdi.spec(HOST.gpus, SOCKETS, driver_in(tmp_path)) == {
        "cdiVersion": "0.6.0",
        "kind": "nvidia.com/gpu",
        "devices": [
            {
                "name": gpu.uuid,
                "containerEdits": {
                    "mounts": [mount(SOCKETS[gpu.minor], f"/dev/simgpu/{gpu.minor}.sock", "noexec")]
                },
            }
            for gpu in HOST.gpus
        ],
        "containerEdits": {
            "mounts": [
                mount(tmp_path / "libcuda.so.1", f"{libraries}/libcuda.so.1"),
                mount(tmp_path / "libnvidia-ml.so.1", f"{libraries}/libnvidia-ml.so.1"),
                mount(tmp_path / "nvidia-smi", "/usr/bin/nvidia-smi"),
            ]
        },
    }


def test_device_nodes_are_those_of_a_driver(tmp_path: Path) -> None:
    minors = [gpu.minor for gpu in HOST.gpus]
    if not device_nodes.make(tmp_path / "dev", minors):
        pytest.skip("device nodes need root")
    spec = cdi.spec(HOST.gpus, SOCKETS, driver_in(tmp_path), tmp_path / "dev")
    for of, names in (
        (spec, ["nvidiactl", "nvidia-uvm"]),
        *((spec["devices"][minor], [f"nvidia{minor}"]) for minor in minors),
    ):
        nodes = of["containerEdits"]["deviceNodes"]
        assert [node["path"] for node in nodes] == [f"/dev/{name}" for name in names]
        assert all(stat.S_ISCHR(os.stat(node["hostPath"]).st_mode) for node in nodes)
    numbers = os.stat(tmp_path / "dev/nvidia0").st_rdev
    assert (os.major(numbers), os.minor(numbers)) == (195, 0)


def test_no_symlink_is_left_in_a_path(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert driver_in(tmp_path / "link").libcuda == tmp_path.resolve() / "real" / "libcuda.so.1"


def test_what_was_not_built_is_named(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").touch()
    assert driver_in(tmp_path).missing == (tmp_path / "libnvidia-ml.so.1", tmp_path / "nvidia-smi")
