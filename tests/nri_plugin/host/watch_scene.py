"""A node whose files a test writes, inspected as the watch does it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nri_plugin.command_line import from_arguments
from nri_plugin.gpu.inventory import Inventory
from nri_plugin.host import watch
from nri_plugin.host.cdi_generator import FILE
from nri_plugin.host.node import Node
from nri_plugin.policy.model import Specs
from nri_plugin.policy.nvidia import CONTROL_NODES
from nri_plugin.threads import Worker
from tests.nri_plugin import fake_nvml
from tests.nri_plugin.cdi import specs
from tests.nri_plugin.cdi_nodes import CONTROL, NODES
from tests.nri_plugin.host_files import put
from tests.nri_plugin.objects import plain_store
from tests.nri_plugin.service_scene import UUID

GPU = {"uuid": UUID, "minor": 0, "memory_bytes": 1 << 30}
OTHER = "GPU-bbbbbbbb-0000-0000-0000-000000000000"
TWO = (GPU, {**GPU, "uuid": OTHER, "minor": 1})
CAT = "import sys; print(open(sys.argv[1]).read())"


def spec(*uuids: str, source: str = "/dev/zero", broken: str = "") -> str:
    """source: of a mount. broken: a GPU with a device node that the host does not have."""

    def device(uuid: str) -> dict[str, Any]:
        nodes = (
            [{**NODES[0], "hostPath": "/dev/nvidia-gone"}, *CONTROL] if uuid == broken else NODES
        )
        edits = {**specs.mount(source, "/x"), "deviceNodes": nodes}
        return {"name": uuid, "containerEdits": edits}

    return specs.spec(*map(device, uuids))


class Host:
    """A node's files; the GPUs and nvidia-ctk are small scripts that read theirs."""

    def __init__(self, tmp_path: Path, *options: str) -> None:
        self.cdi, self.library = tmp_path / "cdi", tmp_path / "libvgpu.so"
        self.gpus, self.ctk = tmp_path / "gpus.json", tmp_path / "ctk.json"
        self.library.write_bytes(b"\x7fELF")
        self.show(GPU)
        self.spec = put(self.cdi / "nvidia.json", spec(UUID))
        self.script = put(tmp_path / "cat.py", CAT)
        # It has the driver's device nodes: otherwise the agent would load modules.
        self.dev = tmp_path / "driver" / "dev"
        self.dev.mkdir(parents=True)
        for node in CONTROL_NODES:
            (self.dev.parent / node[1:]).symlink_to("/dev/null")
        arguments = {
            "--library": self.library,
            "--cdi-dir": self.cdi,
            "--run-dir": tmp_path / "run",
            "--containerd-state": tmp_path,
            "--nvidia-ctk": f"{sys.executable} {self.script} {self.ctk}",
            "--driver-root": self.dev.parent,
        }
        words = [str(word) for pair in arguments.items() for word in pair]
        self.settings = from_arguments([*words, *options], os.environ)

    @property
    def generated(self) -> Path:
        return self.settings.generated_cdi_dir / FILE

    def generates(self, text: str, min_interval_s: float = 30) -> Node:
        """No spec describes the GPUs; nvidia-ctk prints this one."""
        self.spec.unlink()
        self.ctk.write_text(text)
        node = self.node()
        node.generator.min_interval_s = min_interval_s
        return node

    def show(self, *gpus: object, driver: str = "1") -> None:
        self.gpus.write_text(json.dumps({"driver": driver, "gpus": gpus}))

    def node(self) -> Node:
        inventory = Inventory(
            os.environ,
            deadline_s=60,
            min_interval_s=0,
            now=time.monotonic,
            command=(*fake_nvml.PROGRAM, str(self.gpus)),
        )
        store = plain_store(self.settings.store_dir, self.settings.library)
        return Node(self.settings, inventory, store, Worker("files"))

    def found(self, node: Node) -> watch.NodeProblems:
        return asyncio.run(inspect(node))

    def lacks(self, node: Node | None = None) -> Sequence[str]:
        return self.found(node or self.node()).lacks

    def specs(self, node: Node) -> Specs:
        """Those that the agent uses."""
        return asyncio.run(node.work(node.inspect_host))[0]


async def ask(node: Node) -> None:
    await node.inventory.refresh()
    await node.inventory.close()


async def inspect(node: Node) -> watch.NodeProblems:
    """Each inspection has an event loop of its own here, and so has NVML's child."""
    try:
        return await watch.inspect(node)
    finally:
        await node.inventory.close()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)
