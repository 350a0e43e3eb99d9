"""The CDI spec: a device has the socket of its own GPU, and none of another GPU."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from simgpu import cdi, config, device_nodes

HOST = config.load(config.DEFAULT_FILE)
SOCKETS = {gpu.minor: Path(f"/d/gpus/{gpu.minor}.sock") for gpu in HOST.gpus}
FILES = ("libcuda.so.1", "libnvidia-ml.so.1", "nvidia-smi")


def driver_in(directory: Path) -> cdi.Driver:
    return cdi.Driver(*(directory / name for name in FILES))


def mounts(*places: tuple[Path, str], options: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return CDI edits that mount each place, a (path of this machine, container path)."""
    shared = ["bind", "ro", "nosuid", "nodev", *options]
    made = [{"hostPath": str(host), "containerPath": at, "options": shared} for host, at in places]
    return {"containerEdits": {"mounts": made}}


def test_a_device_is_one_gpu_and_brings_the_driver(tmp_path: Path) -> None:
    inside = [f"{cdi.library_dir()}/{name}" for name in FILES[:2]] + ["/usr/bin/nvidia-smi"]

    def device(minor: int, uuid: str) -> dict[str, Any]:
        socket = (SOCKETS[minor], f"/dev/simgpu/{minor}.sock")
        return {"name": uuid, **mounts(socket, options=("noexec",))}

    assert cdi.spec(HOST.gpus, SOCKETS, driver_in(tmp_path)) == {
        "cdiVersion": "0.6.0",
        "kind": "nvidia.com/gpu",
        "devices": [device(gpu.minor, gpu.uuid) for gpu in HOST.gpus],
        **mounts(*zip((tmp_path / name for name in FILES), inside, strict=True)),
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


def test_the_drivers_files_have_no_symlink_in_their_path_and_are_missed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real" / FILES[0]).touch()
    found = driver_in(tmp_path / "link")
    assert found.libcuda == tmp_path.resolve() / "real" / FILES[0]
    assert found.missing == tuple(tmp_path.resolve() / "real" / name for name in FILES[1:])
