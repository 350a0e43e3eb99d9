"""The inspection of a node, and the watch that repeats it."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuslice.contract import names
from gpuslice.gpu.driver_root import NVML
from nri_plugin.command_line import from_arguments
from nri_plugin.gpu.inventory import Inventory
from nri_plugin.host import device_plugins, releases, watch
from nri_plugin.host.cdi_generator import FILE
from nri_plugin.host.node import Node
from nri_plugin.metrics import Metrics
from nri_plugin.policy.gpu_modes import Mode
from nri_plugin.policy.ledger import Ledger, hold
from nri_plugin.policy.model import Pod, Share, Specs
from nri_plugin.policy.nvidia import CONTROL_NODES
from nri_plugin.protocol.session_events import RuntimeInfo
from nri_plugin.readiness import Readiness
from nri_plugin.threads import Worker
from tests.nri_plugin import fake_nvml
from tests.nri_plugin.cdi import specs
from tests.nri_plugin.cdi_nodes import CONTROL, NODES
from tests.nri_plugin.host.test_device_plugins import NVIDIA, write
from tests.nri_plugin.host_files import bound, put
from tests.nri_plugin.objects import plain_store
from tests.nri_plugin.service_scene import UUID, sandbox
from tests.support import until_async

GPU = {"uuid": UUID, "minor": 0, "memory_bytes": 1 << 30}
OTHER = "GPU-bbbbbbbb-0000-0000-0000-000000000000"
TWO = (GPU, {**GPU, "uuid": OTHER, "minor": 1})
CAT = "import sys; print(open(sys.argv[1]).read())"


def spec(*uuids: str, source: str = "/dev/zero", broken: str = "") -> str:
    """Return a CDI spec with one mount per GPU. source: the mount's host path. broken: the UUID of
    the GPU whose device node does not exist, or ""."""
    gone, mount = (
        ({**NODES[0], "hostPath": "/dev/nvidia-gone"}, *CONTROL),
        specs.mount(source, "/x"),
    )
    edits = [{**mount, "deviceNodes": gone if uuid == broken else NODES} for uuid in uuids]
    pairs = zip(uuids, edits, strict=True)
    return specs.spec(*({"name": uuid, "containerEdits": each} for uuid, each in pairs))


class Host:
    """A node's files. Small scripts that read files stand for NVML's process and nvidia-ctk."""

    def __init__(self, tmp_path: Path, *options: str) -> None:
        self.cdi, self.library = tmp_path / "cdi", tmp_path / "libvgpu.so"
        self.gpus, self.ctk = tmp_path / "gpus.json", tmp_path / "ctk.json"
        self.library.write_bytes(b"\x7fELF")
        self.show(GPU)
        self.spec = put(self.cdi / "nvidia.json", spec(UUID))
        self.script = put(tmp_path / "cat.py", CAT)
        # The host has the driver's device nodes. Without them the agent would load kernel modules.
        self.dev = tmp_path / "driver" / "dev"
        self.dev.mkdir(parents=True)
        for node in CONTROL_NODES:
            (self.dev.parent / node[1:]).symlink_to("/dev/null")
        flags = ["--library", self.library, "--cdi-dir", self.cdi, "--run-dir", tmp_path / "run"]
        flags += ["--containerd-state", tmp_path, "--driver-root", self.dev.parent]
        flags += ["--nvidia-ctk", f"{sys.executable} {self.script} {self.ctk}"]
        self.settings = from_arguments([*map(str, flags), *options], os.environ)

    @property
    def generated(self) -> Path:
        return self.settings.generated_cdi_dir / FILE

    def generates(self, text: str, min_interval_s: float = 30) -> Node:
        """Return a node without a CDI spec of the GPUs, whose nvidia-ctk prints `text`."""
        self.spec.unlink()
        self.ctk.write_text(text)
        node = self.node()
        node.generator.min_interval_s = min_interval_s
        return node

    def show(self, *gpus: object, driver: str = "1") -> None:
        self.gpus.write_text(json.dumps({"driver": driver, "gpus": gpus}))

    def node(self, **settings: Any) -> Node:
        self.settings = replace(self.settings, **settings)
        command = (*fake_nvml.PROGRAM, str(self.gpus))
        inventory = Inventory(os.environ, deadline_s=60, min_interval_s=0, command=command)
        store = plain_store(self.settings.store_dir, self.settings.library)
        return Node(self.settings, inventory, store, Worker("files"))

    def found(self, node: Node) -> watch.NodeProblems:
        return asyncio.run(inspect(node))

    def lacks(self, node: Node | None = None) -> Sequence[str]:
        return self.found(node or self.node()).lacks

    def specs(self, node: Node) -> Specs:
        return asyncio.run(node.work(node.inspect_host))[0]


async def ask(node: Node) -> None:
    await node.inventory.refresh()
    await node.inventory.close()


async def inspect(node: Node) -> watch.NodeProblems:
    """Inspect the node. NVML's child ends, because each inspection has its own event loop here."""
    try:
        return await watch.inspect(node)
    finally:
        await node.inventory.close()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_what_a_node_lacks(host: Host) -> None:
    node = host.node()
    assert host.lacks(node) == []
    assert not host.settings.generated_cdi_dir.exists()
    node.selinux = "SELinux does not let container_t read a file of tmpfs_t"
    assert host.lacks(node) == [node.selinux]
    put(host.cdi / "again.json", spec(UUID))
    assert f"CDI device of {UUID} in {host.spec}: duplicate name: " in host.lacks()[0]


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("plugins/nvidia-gpu.sock", "a device plugin listens on {}"),
        ("kubelet/plugins/gpu.nvidia.com/dra.sock", "keep the DRA driver's kubelet plugin off"),
    ],
)
def test_a_node_of_another_program(host: Host, short: Path, place: str, text: str) -> None:
    path, kubelet = short / place, short / "kubelet"
    node = host.node(device_plugin_dir=short / "plugins", kubelet_dir=kubelet)
    with bound(path) as theirs:
        assert host.lacks(node) == [] and node.conflict is None
        theirs.listen()
        assert host.lacks(node) == [], "the GPUs themselves are in order"
    assert text.format(path) in (node.conflict or "")
    assert node.gpus == []


def test_which_gpus_of_a_node_are_ours(host: Host, tmp_path: Path) -> None:
    host.show(*TWO)
    host.spec.write_text(spec(UUID, OTHER))
    node = host.node(device_plugin_dir=tmp_path)
    assert not node.is_ours, "other programs have not been looked for"
    # A GPU that another device plugin assigned to a pod has mode WHOLE until the pod has ended.
    for assigned, mode in (({"uid-1": [UUID]}, Mode.WHOLE), ({}, Mode.SHARED)):
        write(tmp_path, assigned, "nvidia.com/gpu")
        assert host.lacks(node) == []
        assert [node.modes.mode(gpu)[0] for gpu in node.gpus] == [mode, Mode.SHARED]
        assert node.is_ours
    for excluded, ours in (({UUID}, True), ({UUID, OTHER}, False)):
        node.modes.excluded = frozenset(excluded)
        assert node.is_ours is ours
    node.modes.excluded = frozenset()
    unreadable = put(tmp_path / device_plugins.RECORD, "{")
    assert host.lacks(node) == []
    assert str(unreadable) in (node.conflict or "") and not node.is_ours
    unreadable.unlink()
    assert host.lacks(node) == []
    node.modes.excluded, node.inventory.seen = frozenset({UUID, OTHER}), ()
    assert node.is_ours, "no GPU is known"


async def test_releases_that_nothing_mounts_are_removed_each_time(host: Host) -> None:
    node = host.node()
    for number in range(2):
        data = b"\x7fELF %d" % number
        release = releases.publish(data, names.FILE_LIBRARY, host.settings.store_dir)
        node.collect_releases(tuple)
        await node.work(lambda: None)
        assert not release.exists()


def test_unknown_gpus_are_queried_again(host: Host) -> None:
    node = host.node()
    host.gpus.write_text("x")
    assert "this node's GPUs are not known: " in host.lacks(node)[0]
    host.show()
    assert host.lacks(node) == ["the driver lists no GPU on this node"]
    host.show({**GPU, "problem": "GPU is lost"})
    assert host.lacks(node) == [f"no GPU of this node can be shared: {UUID}: GPU is lost"]
    for _ in range(2):
        host.show(GPU)
        assert host.lacks(node) == []
        host.gpus.write_text("x")
        asyncio.run(ask(node))


def test_files_that_hang_are_a_problem(host: Host) -> None:
    """The open of a CDI spec blocks. The worker thread is lost, but the agent answers."""
    node = host.node()
    host.spec.unlink()
    asyncio.run(ask(node))

    async def held_up() -> Sequence[str]:
        blocked = asyncio.create_task(node._worker.run(lambda: time.sleep(5), 60))
        await asyncio.sleep(0)
        problems = (await inspect(node)).lacks
        blocked.cancel()
        return problems

    assert "could not be read or written in time" in asyncio.run(held_up())[0]


@pytest.mark.node
def test_a_driver_root_that_appears_or_moves_is_used_at_once(host: Host, tmp_path: Path) -> None:
    """GPU Operator's driver container mounts it late, and again after its restarts."""
    root = tmp_path / "host"
    for directory in ("proc", "dev"):
        (root / directory).mkdir(parents=True)
    for name in ("/dev/null", *CONTROL_NODES):
        os.mknod(root / name[1:], stat.S_IFCHR | 0o666, os.makedev(1, 3))
    host.settings = replace(host.settings, host_root=root, driver_root=None)
    node = host.generates(spec(UUID), min_interval_s=0)
    assert host.lacks(node) == [] and node.driver_root.host == Path("/")
    for path in ("/run/nvidia/driver", "/home/kubernetes/bin/nvidia"):
        library = put(root / path[1:] / "lib64" / NVML)
        host.ctk.write_text(spec(UUID, source=path))
        assert host.lacks(node) == []
        assert node.driver_root.host == node.generator.root.host == Path(path)
        assert node.driver_root.mount == root / path[1:]
        assert path in host.generated.read_text(), "it was generated for the earlier root"
        library.unlink()
        assert host.lacks(node) == [] and node.driver_root.host == Path(path)


def test_a_missing_directory_is_a_reason_with_the_hosts_path(host: Host, tmp_path: Path) -> None:
    """The reason is reported beside all others until the directory exists."""
    root, state = tmp_path / "host", tmp_path / "host/run/other/containerd"
    (root / "proc").mkdir(parents=True)
    node = host.node(host_root=root, containerd_state=state, library=root / "libvgpu.so")
    missing, library = host.lacks(node)[:2]
    assert missing.startswith("/run/other/containerd does not exist: ")
    assert library == "the library is missing: /libvgpu.so: No such file or directory"
    state.mkdir(parents=True)
    assert "the library is missing" in host.lacks(node)[0]


def test_a_default_runtime_that_gives_gpus_is_a_problem(host: Host, tmp_path: Path) -> None:
    put(tmp_path / "etc/nvidia-container-runtime/config.toml", 'swarm-resource = "ANY"\n')
    node = host.node(host_root=tmp_path)
    for number, (program, is_problem) in enumerate(((NVIDIA, True), ("/usr/bin/runc", False))):
        sandbox(tmp_path, str(number), program)
        node.note_default_runtime([str(number)])
        assert (node.default_runtime, bool(node.unprotected)) == (program, is_problem)


async def test_the_watch_inspects_at_intervals_and_for_another_runtime(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An inspection lasts one beat here. A GPU's problem is logged once."""
    beats, inspected, node = list[None](), list[int](), host.node()

    async def look(_: Node) -> watch.NodeProblems:
        inspected.append(len(beats))
        return watch.NodeProblems((), {UUID: "no CDI device"})

    def beat() -> None:
        beats.append(None)
        if len(beats) == 8:
            node.runtime = RuntimeInfo("containerd", "2.1.0", "", 2000)
        if len(beats) == 14:
            watching.cancel()

    readiness = Readiness(lambda: 0.0, beat)
    monkeypatch.setattr(watch, "BEAT_S", 0)
    monkeypatch.setattr(watch, "inspect", look)
    watching = asyncio.create_task(watch.watch(node, Ledger(), readiness, Metrics()))
    await asyncio.wait([watching])
    assert (inspected, list(readiness.unusable)) == ([1, 6, 8, 11], [UUID])
    assert caplog.text.count("GPU cannot be injected into containers") == 1


async def test_the_watch_reports_a_library_that_is_lost_and_restored(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(watch, "BEAT_S", 0.001)
    readiness, metrics, node, ledger = Readiness(lambda: 0.0), Metrics(), host.node(), Ledger()
    readiness.session = None
    whole = host.library.read_bytes()
    host.library.unlink()

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, labels)

    pod, shares = Pod("uid", "team", "train"), [Share("GPU-0", 0, 1, 1)]
    ledger.adopt([hold(f"c{n}", f"c{n}", pod, f"{n}", shares) for n in range(2)], ())
    watching = asyncio.create_task(watch.watch(node, ledger, readiness, metrics))
    await until_async(lambda: "the library is missing" in str(readiness.node))
    assert value("gpuslice_ready") == 0
    host.library.write_bytes(whole)
    await until_async(lambda: value("gpuslice_ready") == 1)
    watching.cancel()
    await asyncio.wait([watching])
    await node.inventory.close()
    assert (value("gpuslice_gpus"), value("gpuslice_containers_with_grant")) == (1, 2)
    assert node.library and value("gpuslice_library", sha256=node.library.parent.name) == 1
    assert caplog.messages[-1] == "ready"
    assert any(line.startswith("not ready") for line in caplog.messages)
