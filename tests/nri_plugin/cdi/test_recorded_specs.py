"""How the agent uses specs that nvidia-ctk 1.17 to 1.20 wrote (record_specs.py)."""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from nri_plugin.host import cdi_reader
from nri_plugin.host.cdi_generator import FILE, render
from nri_plugin.host.driver_root import DriverRoot
from nri_plugin.policy import capabilities
from nri_plugin.policy.model import CdiDevice, Edits
from tests.nri_plugin.cdi.record_specs import LAYOUTS, MOUNT, RECORDED

VERSION = ".580.65.06"
UUIDS = [f"GPU-5e1f0a70-0000-4000-8000-{number:012x}" for number in range(8)]
NODES = {"/dev/nvidiactl", "/dev/nvidia-uvm"}
KEPT = {
    *("libcuda.so", "libnvidia-ml.so", "libnvidia-ptxjitcompiler.so", "libnvidia-nvvm.so"),
    *("libcudadebugger.so", "nvidia-smi", "nvidia-debugdump", "nvidia-persistenced"),
    *("nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "gsp_ga10x.bin"),
}
GRAPHICS = {
    *("libEGL_nvidia.so", "libGLX_nvidia.so", "libnvidia-glcore.so", "nvidia_icd.json"),
    *("10_nvidia.json", "libnvidia-encode.so", "libnvcuvid.so"),
}
OLDEST = ["create-symlinks", "enable-cuda-compat", "update-ldcache"]
OLD = [*OLDEST, "disable-device-node-modification"]
NEW = [*OLD, "update-application-profile"]
HOOKS = {"1.17.8": OLDEST, "1.18.2": OLD, "1.19.1": OLD, "1.20.1": NEW}
"""Names of the hooks that a container with a share gets, by nvidia-ctk's version."""
RECORDINGS = [
    *(f"{name}-1.17.8" for name in ("package", "pod", "driver-container", "bottlerocket")),
    *(f"{name}-1.18.2" for name in ("package", "pod")),
    *(f"{name}-1.19.1" for name in ("package", "pod", "aks", "talos")),
    *(f"{name}-1.20.1" for name in ("package", "package-8", "pod", "driver-container")),
    *(f"{name}-1.20.1" for name in ("eks", "gke", "no-uvm")),
]


def _status(path: str) -> os.stat_result:
    """Return the status of a path on a host that has everything. All device nodes are 7:9."""
    if path.startswith("/dev/"):
        return os.stat_result([stat.S_IFCHR | 0o660] + [0] * 9, {"st_rdev": os.makedev(7, 9)})
    return os.stat_result([stat.S_IFREG | 0o644] + [0] * 9)


def _load(recording: str, tmp_path: Path) -> Sequence[CdiDevice]:
    """Write the spec as the toolkit or the agent would, and return its devices."""
    layout = LAYOUTS[recording.rpartition("-")[0]]
    uuids = UUIDS[: layout.gpus]
    text = (RECORDED / f"{recording}.json").read_text()
    if layout.in_pod:
        text, problem = render(text.encode(), uuids, DriverRoot(Path(layout.root), Path(MOUNT)))
        assert not problem
    (tmp_path / FILE).write_text(text)
    specs = cdi_reader.load([tmp_path], status=_status)
    assert not specs.problems
    return [specs.devices[uuid] for uuid in uuids]


def _names(edits: Edits) -> list[str]:
    return [posixpath.basename(mount.destination).replace(VERSION, "") for mount in edits.mounts]


def _whole(device: CdiDevice, given: set[str]) -> Edits:
    own, common = (capabilities.cut(each, given) for each in (device.own, device.common))
    return Edits(
        devices=(*own.devices, *common.devices),
        mounts=(*own.mounts, *common.mounts),
        hooks=(*common.hooks, *own.hooks),
    )


def test_the_table_has_each_recording() -> None:
    assert {f"{name}.json" for name in RECORDINGS} == {path.name for path in RECORDED.iterdir()}


@pytest.mark.parametrize("recording", RECORDINGS)
def test_a_container_with_a_share(recording: str, tmp_path: Path) -> None:
    """The share gets no socket of the host's daemons. nvidia-ctk 1.17 opens DRM nodes by a hook."""
    name, _, version = recording.rpartition("-")
    layout = LAYOUTS[name]
    root, is_old = layout.root.rstrip("/"), version == "1.17.8"
    for minor, device in enumerate(_load(recording, tmp_path)):
        if not layout.uvm:
            assert "must contain /dev/nvidia-uvm, without which" in str(device.problem)
            return
        assert device.problem is None
        share = _whole(device, {*capabilities.ALWAYS})
        assert {each.path for each in share.devices} == NODES | {f"/dev/nvidia{minor}"}
        assert {(each.type, each.major, each.minor) for each in share.devices} == {("c", 7, 9)}
        assert set(_names(share)) == KEPT
        assert all(mount.source.startswith(f"{root}/") for mount in share.mounts)
        assert not any(MOUNT in str(mount) for mount in share.mounts)
        hooks = [*HOOKS[version], *(["chmod"] if layout.drm and is_old else [])]
        assert [hook.args[1] for hook in share.hooks] == hooks
        dropped = [*_names(device.common), *_names(device.own)]
        assert dropped.count("socket") == len(layout.sockets)
        assert set(dropped) - {"socket"} == KEPT | GRAPHICS


@pytest.mark.parametrize("recording", [name for name in RECORDINGS if "no-uvm" not in name])
def test_a_container_that_may_use_graphics(recording: str, tmp_path: Path) -> None:
    """nvidia-ctk 1.19 gives processes the groups of DRM nodes. NRI cannot give a group."""
    name, _, version = recording.rpartition("-")
    drm = LAYOUTS[name].drm
    for minor, device in enumerate(_load(recording, tmp_path)):
        edits = _whole(device, {*capabilities.CAPABILITIES})
        assert set(_names(edits)) == KEPT | GRAPHICS
        nodes = {each.path: each for each in edits.devices if "/dri/" in each.path}
        paths = (f"/dev/dri/card{minor}", f"/dev/dri/renderD{128 + minor}")
        assert set(nodes) == set(paths if drm else ())
        if drm and version >= "1.19":
            assert {each.file_mode for each in nodes.values()} == {0o666}
