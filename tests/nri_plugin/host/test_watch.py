"""The inspection of the node between requests: what it lacks, and that a later addition is seen."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from contract import names
from gpu.driver_root import NVML
from nri_plugin.command_line import from_arguments
from nri_plugin.gpu.inventory import Inventory
from nri_plugin.host import device_plugins
from nri_plugin.host import watch as module
from nri_plugin.host.cdi_generator import FILE
from nri_plugin.host.node import Node
from nri_plugin.metrics import Metrics
from nri_plugin.policy.gpu_modes import Mode
from nri_plugin.policy.nvidia import CONTROL_NODES
from nri_plugin.readiness import Readiness
from nri_plugin.settings import Settings
from nri_plugin.threads import Worker
from tests.nri_plugin import fake_nvml
from tests.nri_plugin.cdi_nodes import NODES
from tests.nri_plugin.host.test_device_plugins import short, write
from tests.nri_plugin.objects import plain_store
from tests.support import until_async

__all__ = ["short"]

T = TypeVar("T")

UUID = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
GPU = {"uuid": UUID, "minor": 0, "memory_bytes": 1 << 30}
OTHER = "GPU-bbbbbbbb-0000-0000-0000-000000000000"
TWO = (GPU, {**GPU, "uuid": OTHER, "minor": 1})


def spec(*uuids: str, kind: str = names.CDI_KIND) -> str:
    edits = {"mounts": [{"hostPath": "/dev/zero", "containerPath": "/x"}], "deviceNodes": NODES}
    devices = [{"name": uuid, "containerEdits": edits} for uuid in uuids]
    return json.dumps({"cdiVersion": "0.6.0", "kind": kind, "devices": devices})


def broken(text: str, uuid: str) -> str:
    """Return the spec with a device node of this GPU that the host does not have."""
    document = json.loads(text)
    for device in document["devices"]:
        if device["name"] == uuid:
            device["containerEdits"]["deviceNodes"][0]["hostPath"] = "/dev/nvidia-gone"
    return json.dumps(document)


class Host:
    """A node's files; the GPUs and nvidia-ctk are small scripts that read theirs."""

    def __init__(self, tmp_path: Path, *options: str) -> None:
        self.cdi, self.library = tmp_path / "cdi", tmp_path / "libvgpu.so"
        self.gpus, self.ctk = tmp_path / "gpus.json", tmp_path / "ctk.json"
        self.cdi.mkdir()
        self.library.write_bytes(b"\x7fELF")
        self.show(GPU)
        self.spec = self.cdi / "nvidia.json"
        self.spec.write_text(spec(UUID))
        (tmp_path / "cat.py").write_text("import sys; print(open(sys.argv[1]).read())")
        program = f"{sys.executable} {tmp_path / 'cat.py'}"
        arguments = f"--library {self.library} --cdi-dir {self.cdi} --run-dir {tmp_path / 'run'}"
        # It has the driver's device nodes: otherwise the agent would load modules.
        self.dev = tmp_path / "driver" / "dev"
        self.dev.mkdir(parents=True)
        for node in CONTROL_NODES:
            (self.dev.parent / node[1:]).symlink_to("/dev/null")
        places = ["--containerd-state", str(tmp_path), "--nvidia-ctk", f"{program} {self.ctk}"]
        places += ["--driver-root", str(self.dev.parent)]
        self.settings: Settings = from_arguments(
            [*arguments.split(), *places, *options], os.environ
        )
        self.command = (*fake_nvml.PROGRAM, str(self.gpus))

    def show(self, *gpus: object, driver: str = "1") -> None:
        self.gpus.write_text(json.dumps({"driver": driver, "gpus": gpus}))

    def node(self) -> Node:
        inventory = Inventory(
            os.environ, deadline_s=60, min_interval_s=0, now=time.monotonic, command=self.command
        )
        store = plain_store(self.settings.store_dir, self.settings.library)
        return Node(self.settings, inventory, store, Worker("files"))

    def lacks(self, node: Node | None = None) -> Sequence[str]:
        return run(lambda: inspect(node or self.node())).lacks


async def ask(node: Node) -> None:
    await node.inventory.refresh()
    await node.inventory.close()


async def inspect(node: Node) -> module.Found:
    """Each inspection has an event loop of its own here, and so has NVML's child."""
    try:
        return await module.inspect(node)
    finally:
        await node.inventory.close()


def run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return asyncio.run(work())


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_healthy_node_lacks_nothing(host: Host) -> None:
    assert host.lacks() == []
    assert not host.settings.generated_cdi_dir.exists()


def test_the_device_plugins_spec_suffices(host: Host) -> None:
    """GPU Operator's: nothing is generated."""
    host.spec.write_text(spec(UUID, kind=names.CDI_KINDS[1]))
    assert host.lacks() == []
    assert not host.settings.generated_cdi_dir.exists()


def test_a_node_with_a_plugin_of_nvidias_is_not_ours(host: Host, tmp_path: Path) -> None:
    plugins = tmp_path / "device-plugins"
    plugins.mkdir()
    host.settings = replace(host.settings, device_plugin_dir=plugins)
    node = host.node()
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(plugins / "nvidia-gpu.sock"))
        assert host.lacks(node) == [] and node.conflict is None
        theirs.listen()
        assert host.lacks(node) == [], "the GPUs themselves are in order"
        assert f"a device plugin listens on {plugins}/nvidia-gpu.sock" in (node.conflict or "")
    assert node.gpus == []


def test_a_node_with_nvidias_dra_driver_is_not_ours(host: Host, short: Path) -> None:
    kubelet = short / "kubelet"
    (kubelet / "plugins/gpu.nvidia.com").mkdir(parents=True)
    host.settings = replace(host.settings, kubelet_dir=kubelet)
    node = host.node()
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(kubelet / "plugins/gpu.nvidia.com/dra.sock"))
        theirs.listen()
        assert host.lacks(node) == [], "the GPUs themselves are in order"
    assert "keep the DRA driver's kubelet plugin off this node" in (node.conflict or "")
    assert node.gpus == []


def test_a_gpu_that_another_plugin_gave_to_a_pod_is_whole(host: Host, tmp_path: Path) -> None:
    """Until the pod has ended, also after the plugin has left."""
    host.show(*TWO)
    host.spec.write_text(spec(UUID, OTHER))
    host.settings = replace(host.settings, device_plugin_dir=tmp_path)
    node = host.node()
    write(tmp_path, {"uid-1": [UUID]}, "nvidia.com/gpu")
    assert host.lacks(node) == []
    assert [node.modes.of(gpu)[0] for gpu in node.gpus] == [Mode.WHOLE, Mode.SHARED]
    write(tmp_path, {}, "nvidia.com/gpu")
    assert host.lacks(node) == []
    assert [node.modes.of(gpu)[0] for gpu in node.gpus] == [Mode.SHARED, Mode.SHARED]


def test_a_record_of_the_kubelets_that_cannot_be_read(host: Host, tmp_path: Path) -> None:
    (tmp_path / device_plugins.RECORD).write_text("{")
    host.settings = replace(host.settings, device_plugin_dir=tmp_path)
    node = host.node()
    assert host.lacks(node) == []
    assert str(tmp_path / device_plugins.RECORD) in (node.conflict or "")


def test_a_node_whose_selinux_hides_the_files(host: Host) -> None:
    node = host.node()
    node.selinux = "SELinux does not let container_t read a file of tmpfs_t"
    assert host.lacks(node) == [node.selinux]


def test_a_missing_library(host: Host) -> None:
    host.library.unlink()
    assert host.lacks() == [f"the library is missing: {host.library}: No such file or directory"]


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


def test_a_missing_spec_is_generated(host: Host) -> None:
    host.spec.unlink()
    host.ctk.write_text(spec("0", UUID, "all"))
    assert host.lacks() == []
    assert os.listdir(host.settings.generated_cdi_dir) == [FILE]
    assert os.listdir(host.cdi) == []


def test_a_gpu_without_a_cdi_device_leaves_the_others_ready(host: Host) -> None:
    """nvidia-ctk describes one of two; later both, and the first keeps its device."""
    host.spec.unlink()
    host.show(*TWO)
    host.ctk.write_text(spec(OTHER))
    node = host.node()
    node.generator._min_interval_s = 0
    found = run(lambda: inspect(node))
    assert found.lacks == []
    assert list(found.unusable) == [UUID]
    assert f"nvidia-ctk does not describe nvidia.com/gpu={UUID}" in found.unusable[UUID]
    host.ctk.write_text(spec(OTHER, UUID))
    assert run(lambda: inspect(node)) == module.Found([], {})


def test_a_gpu_with_an_unusable_generated_spec_leaves_the_others_ready(host: Host) -> None:
    """Until nvidia-ctk describes it in a usable way."""
    host.spec.unlink()
    host.show(*TWO)
    host.ctk.write_text(broken(spec(UUID, OTHER), UUID))
    node = host.node()
    for _ in range(3):
        found = run(lambda: inspect(node))
        assert (found.lacks, list(found.unusable)) == ([], [UUID])
    node.generator._min_interval_s = 0
    host.ctk.write_text(spec(UUID, OTHER))
    assert run(lambda: inspect(node)) == module.Found([], {})


def test_the_problem_names_why_no_spec_was_generated(host: Host) -> None:
    host.spec.write_text("{")
    (problem,) = host.lacks()
    assert problem.startswith(f"{UUID} has no CDI device (unreadable: {host.spec}: ")
    assert "none was generated: FileNotFoundError: [Errno 2]" in problem


def test_no_spec_is_generated_where_that_is_switched_off(tmp_path: Path) -> None:
    host = Host(tmp_path, "--nvidia-ctk", "off")
    host.spec.unlink()
    assert host.lacks() == [f"{UUID} has no CDI device"]


def test_a_spec_that_cannot_be_written(host: Host) -> None:
    host.spec.unlink()
    host.ctk.write_text(spec(UUID))
    host.settings.run_dir.write_text("in the way")
    assert host.lacks()[0].startswith("no CDI spec can be written: ")


def test_a_generated_spec_gives_way_to_a_second_description(tmp_path: Path) -> None:
    """If the runtime must find it, it lies in the directory of other specs, which may come
    later."""
    host = Host(tmp_path, "--whole-gpus", "any")
    node = host.node()
    written = host.spec.read_text()
    host.spec.unlink()
    host.ctk.write_text(spec(UUID))
    assert host.lacks(node) == []
    assert os.listdir(host.cdi) == [FILE]
    host.spec.write_text(written)
    assert host.lacks(node) == []
    assert os.listdir(host.cdi) == [host.spec.name]


@pytest.mark.parametrize("name", ["a.json", "nvidia.json"])
def test_a_second_description_of_one_gpu_leaves_the_generated_ones_of_the_others(
    tmp_path: Path, name: str
) -> None:
    """name: sorted before or after the generated file."""
    host = Host(tmp_path, "--whole-gpus", "any")
    node = host.node()
    host.spec.unlink()
    host.show(*TWO)
    host.ctk.write_text(spec(UUID, OTHER))
    assert host.lacks(node) == []
    (host.cdi / name).write_text(spec(UUID))
    for _ in range(3):
        assert run(lambda: inspect(node)) == module.Found([], {})
    generated = json.loads((host.cdi / FILE).read_text())
    assert [device["name"] for device in generated["devices"]] == [OTHER]


def test_an_earlier_agents_spec_is_renewed_or_removed(host: Host) -> None:
    host.spec.unlink()
    host.ctk.write_text(spec(UUID))
    assert host.lacks() == []
    generated = host.settings.generated_cdi_dir / FILE
    host.ctk.write_text(spec(UUID).replace("/dev/zero", "/dev/full"))
    run(host.node().renew_specs)
    assert "/dev/full" in generated.read_text()
    host.ctk.unlink()
    run(host.node().renew_specs)
    assert not generated.exists()
    run(host.node().renew_specs)


def test_another_driver_renews_the_generated_spec(host: Host) -> None:
    """Without a restart of the agent; a completed query is not repeated for the same driver."""
    host.spec.unlink()
    host.ctk.write_text(spec(UUID))
    node = host.node()
    node.generator._min_interval_s = 0
    assert host.lacks(node) == []
    generated = host.settings.generated_cdi_dir / FILE
    for driver, path in (("1", "/dev/zero"), ("2", "/dev/full")):
        host.show(GPU, driver=driver)
        host.ctk.write_text(spec(UUID).replace("/dev/zero", "/dev/full"))
        run(lambda: ask(node))
        assert host.lacks(node) == []
        assert path in generated.read_text()


@pytest.mark.node
def test_a_driver_root_that_appears_or_moves_is_used_at_once(host: Host, tmp_path: Path) -> None:
    """GPU Operator's driver container mounts it after the agent started, and again after each of
    its own restarts; while it is away, the last one stays."""
    root = tmp_path / "host"
    (root / "proc").mkdir(parents=True)
    (root / "dev").mkdir()
    for name in ("null", *(Path(each).name for each in CONTROL_NODES)):
        os.mknod(root / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    host.spec.unlink()
    host.ctk.write_text(spec(UUID))
    host.settings = replace(host.settings, host_root=root, driver_root=None)
    node = host.node()
    node.generator._min_interval_s = 0
    assert host.lacks(node) == [] and node.driver_root.host == Path("/")
    generated = host.settings.generated_cdi_dir / FILE
    for path in ("/run/nvidia/driver", "/home/kubernetes/bin/nvidia"):
        library = root / path.lstrip("/") / "lib64" / NVML
        library.parent.mkdir(parents=True)
        library.touch()
        host.ctk.write_text(spec(UUID).replace("/dev/zero", path))
        assert host.lacks(node) == []
        assert node.driver_root.host == node.generator.root.host == Path(path)
        assert node.driver_root.mount == root / path.lstrip("/")
        assert path in generated.read_text(), "it was generated for the earlier root"
        library.unlink()
        assert host.lacks(node) == [] and node.driver_root.host == Path(path)


def test_a_missing_directory_is_a_reason_with_the_hosts_path(host: Host, tmp_path: Path) -> None:
    """Beside what else is missing, and until it is there."""
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


def test_an_unusable_spec_is_named_by_the_hosts_path(host: Host, tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    host.settings = replace(host.settings, host_root=tmp_path)
    (host.cdi / "again.json").write_text(spec(UUID))
    assert f"CDI device of {UUID} in /cdi/nvidia.json: duplicate name: " in host.lacks()[0]


def test_a_renewal_that_timed_out_is_repeated(host: Host) -> None:
    host.spec.unlink()
    host.ctk.write_text(spec(UUID))
    node = host.node()
    assert host.lacks(node) == []
    host.ctk.write_text(spec(UUID).replace("/dev/zero", "/dev/full"))
    host.show(GPU, driver="2")
    node.generator._min_interval_s = 0
    gate = threading.Event()

    def held_up() -> None:
        gate.wait()

    async def renew() -> None:
        await ask(node)
        node._worker.post(held_up)
        with pytest.raises(TimeoutError):
            await node.renew_specs()
        gate.set()
        await node.renew_specs()

    run(renew)
    assert "/dev/full" in (host.settings.generated_cdi_dir / FILE).read_text()


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

    watching = asyncio.create_task(module.watch(node, lambda: 2, readiness, metrics))
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
