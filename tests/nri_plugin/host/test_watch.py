"""The inspection of a node, and the watch that repeats it."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpuslice.contract import names
from gpuslice.gpu.driver_root import NVML
from nri_plugin.host import device_plugins, releases
from nri_plugin.host import watch as module
from nri_plugin.metrics import Metrics
from nri_plugin.policy.gpu_modes import Mode
from nri_plugin.policy.ledger import Ledger, hold
from nri_plugin.policy.model import Pod, Share
from nri_plugin.policy.nvidia import CONTROL_NODES
from nri_plugin.readiness import Readiness
from tests.nri_plugin.host.test_device_plugins import write
from tests.nri_plugin.host.watch_scene import (
    GPU,
    OTHER,
    TWO,
    UUID,
    Host,
    ask,
    host,
    inspect,
    run,
    spec,
)
from tests.support import until_async

__all__ = ["host"]


def test_a_healthy_node_lacks_nothing(host: Host) -> None:
    assert host.lacks() == []
    assert not host.settings.generated_cdi_dir.exists()


def test_a_node_whose_containers_cannot_use_our_files_is_not_ready(host: Host) -> None:
    node = host.node()
    node.selinux = "SELinux does not let container_t read a file of tmpfs_t"
    assert host.lacks(node) == [node.selinux]


@pytest.mark.parametrize(
    ("socket_at", "text"),
    [
        ("plugins/nvidia-gpu.sock", "a device plugin listens on {}"),
        ("kubelet/plugins/gpu.nvidia.com/dra.sock", "keep the DRA driver's kubelet plugin off"),
    ],
)
def test_a_node_that_another_program_serves_is_not_ours(
    host: Host, short: Path, socket_at: str, text: str
) -> None:
    path = short / socket_at
    path.parent.mkdir(parents=True)
    host.settings = replace(
        host.settings, device_plugin_dir=short / "plugins", kubelet_dir=short / "kubelet"
    )
    node = host.node()
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(path))
        assert host.lacks(node) == [] and node.conflict is None
        theirs.listen()
        assert host.lacks(node) == [], "the GPUs themselves are in order"
    assert text.format(path) in (node.conflict or "")
    assert node.gpus == []


def test_a_gpu_that_another_plugin_gave_to_a_pod_is_whole(host: Host, tmp_path: Path) -> None:
    """It is whole until the pod has ended, also after the plugin has left."""
    host.show(*TWO)
    host.spec.write_text(spec(UUID, OTHER))
    host.settings = replace(host.settings, device_plugin_dir=tmp_path)
    node = host.node()
    write(tmp_path, {"uid-1": [UUID]}, "nvidia.com/gpu")
    assert host.lacks(node) == []
    assert [node.modes.mode(gpu)[0] for gpu in node.gpus] == [Mode.WHOLE, Mode.SHARED]
    write(tmp_path, {}, "nvidia.com/gpu")
    assert host.lacks(node) == []
    assert [node.modes.mode(gpu)[0] for gpu in node.gpus] == [Mode.SHARED, Mode.SHARED]


def test_a_record_of_the_kubelets_that_cannot_be_read(host: Host, tmp_path: Path) -> None:
    (tmp_path / device_plugins.RECORD).write_text("{")
    host.settings = replace(host.settings, device_plugin_dir=tmp_path)
    node = host.node()
    assert host.lacks(node) == []
    assert str(tmp_path / device_plugins.RECORD) in (node.conflict or "")


def test_a_node_is_ours_while_the_operator_leaves_it_a_gpu(host: Host) -> None:
    host.show(*TWO)
    host.spec.write_text(spec(UUID, OTHER))
    node = host.node()
    assert not node.is_ours, "other programs have not been looked for"
    assert host.lacks(node) == []
    for excluded, ours in (({UUID}, True), ({UUID, OTHER}, False)):
        node.modes.excluded = frozenset(excluded)
        assert node.is_ours is ours
    node.inventory.seen = ()
    assert node.is_ours, "no GPU is known"


async def test_releases_that_nothing_mounts_are_removed_each_time(host: Host) -> None:
    node = host.node()
    for number in range(2):
        data = b"\x7fELF %d" % number
        release = releases.publish(data, names.FILE_LIBRARY, host.settings.store_dir)
        node.collect_releases(tuple)
        await node.work(lambda: None)
        assert not release.exists()


def test_a_gpu_whose_spec_cannot_be_used(host: Host) -> None:
    (host.cdi / "again.json").write_text(spec(UUID))
    assert f"CDI device of {UUID} in {host.spec}: duplicate name: " in host.lacks()[0]


def test_unknown_gpus_are_queried_again(host: Host) -> None:
    node = host.node()
    host.gpus.write_text("x")
    assert "this node's GPUs are not known: " in host.lacks(node)[0]
    host.show()
    assert host.lacks(node) == ["the driver lists no GPU on this node"]
    host.show({**GPU, "problem": "GPU is lost"})
    assert host.lacks(node) == [f"no GPU of this node can be shared: {UUID}: GPU is lost"]
    host.show(GPU)
    assert host.lacks(node) == []


def test_files_that_hang_are_a_problem(host: Host) -> None:
    """A CDI spec whose open blocks; the worker thread is lost, the answer is not."""
    node = host.node()
    host.spec.unlink()
    run(lambda: ask(node))

    async def held_up() -> Sequence[str]:
        blocked = asyncio.create_task(node._worker.run(lambda: time.sleep(5), 60))
        await asyncio.sleep(0)
        problems = (await inspect(node)).lacks
        blocked.cancel()
        return problems

    assert "could not be read or written in time" in run(held_up)[0]


@pytest.mark.node
def test_a_driver_root_that_appears_or_moves_is_used_at_once(host: Host, tmp_path: Path) -> None:
    """GPU Operator's driver container mounts it after the agent started, and again after each of
    its own restarts; while it is away, the last one stays."""
    root = tmp_path / "host"
    (root / "proc").mkdir(parents=True)
    (root / "dev").mkdir()
    for name in ("null", *(Path(each).name for each in CONTROL_NODES)):
        os.mknod(root / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    host.generates(spec(UUID))
    host.settings = replace(host.settings, host_root=root, driver_root=None)
    node = host.node()
    node.generator.min_interval_s = 0
    assert host.lacks(node) == [] and node.driver_root.host == Path("/")
    for path in ("/run/nvidia/driver", "/home/kubernetes/bin/nvidia"):
        library = root / path.lstrip("/") / "lib64" / NVML
        library.parent.mkdir(parents=True)
        library.touch()
        host.ctk.write_text(spec(UUID).replace("/dev/zero", path))
        assert host.lacks(node) == []
        assert node.driver_root.host == node.generator.root.host == Path(path)
        assert node.driver_root.mount == root / path.lstrip("/")
        assert path in host.generated.read_text(), "it was generated for the earlier root"
        library.unlink()
        assert host.lacks(node) == [] and node.driver_root.host == Path(path)


def test_a_missing_directory_is_a_reason_with_the_hosts_path(host: Host, tmp_path: Path) -> None:
    """It stands beside what else is missing, until the directory is there."""
    root = tmp_path / "host"
    (root / "proc").mkdir(parents=True)
    state = root / "run/other/containerd"
    host.settings = replace(host.settings, host_root=root, containerd_state=state)
    host.library.unlink()
    node = host.node()
    lacks = host.lacks(node)
    assert lacks[0].startswith("/run/other/containerd does not exist: ")
    assert "the library is missing" in lacks[1]
    state.mkdir(parents=True)
    assert "the library is missing" in host.lacks(node)[0]


async def test_the_watch_reports_a_library_that_is_lost_and_restored(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(module, "BEAT_S", 0.001)
    readiness, metrics, node = Readiness(lambda: 0.0), Metrics(), host.node()
    readiness.session = None
    whole = host.library.read_bytes()
    host.library.unlink()

    def value(name: str) -> float | None:
        return metrics.registry.get_sample_value(name)

    ledger = Ledger()
    pod, shares = Pod("uid", "team", "train"), [Share("GPU-0", 0, 1, 1)]
    ledger.adopt([hold(f"c{n}", f"c{n}", False, pod, f"{n}", shares) for n in range(2)], ())
    watching = asyncio.create_task(module.watch(node, ledger, readiness, metrics))
    await until_async(lambda: "the library is missing" in str(readiness.node))
    assert value("gpuslice_ready") == 0
    host.library.write_bytes(whole)
    await until_async(lambda: value("gpuslice_ready") == 1)
    watching.cancel()
    await asyncio.wait([watching])
    await node.inventory.close()
    assert value("gpuslice_gpus") == 1
    assert value("gpuslice_containers_with_grant") == 2
    assert caplog.messages[-1] == "ready"
    assert any(line.startswith("not ready") for line in caplog.messages)
