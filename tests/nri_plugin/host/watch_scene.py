"""A node whose files a test writes, inspected as the watch does it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from gpuslice.contract import names
from nri_plugin.command_line import from_arguments
from nri_plugin.gpu.inventory import Inventory
from nri_plugin.host import watch as module
from nri_plugin.host.cdi_generator import FILE
from nri_plugin.host.node import Node
from nri_plugin.policy.nvidia import CONTROL_NODES
from nri_plugin.settings import Settings
from nri_plugin.threads import Worker
from tests.nri_plugin import fake_nvml
from tests.nri_plugin.cdi_nodes import NODES
from tests.nri_plugin.objects import plain_store

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

    @property
    def generated(self) -> Path:
        return self.settings.generated_cdi_dir / FILE

    def generates(self, text: str) -> None:
        """No spec describes the GPUs; nvidia-ctk prints this one."""
        self.spec.unlink()
        self.ctk.write_text(text)

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


async def inspect(node: Node) -> module.NodeProblems:
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
