"""The agent's program in a pod's control group, with the chart's memory limit.

Processes, CUDA contexts and containers' files are charged to the group. The files stay charged
while the agent restarts.
"""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
import yaml

from gpuslice.contract import allocation, grants, names, quantity
from gpuslice.contract.allocation import Allocation, DeviceEntry
from gpuslice.contract.grants import GpuGrant
from lab.node.cgroups import MemoryGroup, into
from nri_plugin.gpu import record
from nri_plugin.host.files import RunDirectory
from nri_plugin.messages import nri_pb2 as nri
from simgpu import config
from tests.nri_plugin.fake_runtime import FakeRuntime, RequestFailed
from tests.nri_plugin.objects import clear
from tests.nri_plugin.service_scene import as_made, container, pod
from tests.simgpu.host import Host
from tests.support import GIB, ROOT, until_async

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

CONTAINERS: Final = 250
_CONTEXT_BYTES: Final = 300 << 20


@pytest.fixture(params=[1, 8, 16], ids="{} GPUs".format)
def host(request: pytest.FixtureRequest, build_dir: Path, tmp_path: Path) -> Iterator[Host]:
    """Start a host with GPUs whose contexts each take 300 MiB of the host's memory."""
    described = tmp_path / "host.toml"
    text = config.DEFAULT_FILE.read_text()
    costly = text.replace('context_host_memory = "0"', f'context_host_memory = "{_CONTEXT_BYTES}"')
    assert costly != text
    described.write_text(costly)
    gpus = ["--gpu", "80GiB"] * request.param
    made = Host(tmp_path / "sim", ["--config", described, *gpus], build_dir=build_dir)
    made.up()
    yield made
    made.down()


class Node:
    def __init__(self, root: Path, host: Host, group: MemoryGroup) -> None:
        self._root, self._host, self._group = root, host, group
        self.run_dir = root / "run"
        (root / "state").mkdir()
        self._pods: list[nri.PodSandbox] = []
        self._containers: list[nri.Container] = []
        self._sessions: asyncio.Queue[FakeRuntime] = asyncio.Queue()
        self.most_bytes = 0

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        runtime = FakeRuntime(reader, writer)
        await runtime.handshake(self._pods, self._containers)
        self._sessions.put_nowait(runtime)

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[FakeRuntime]:
        """Start the agent, yield its registered session, and kill the agent at the end."""
        environment, build = self._host.env(), self._host.build_dir
        assert build is not None
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        place, group = self._root, self._group.container(len(self._pods))
        command: list[str | Path] = [*into(group), sys.executable, "-m", "nri_plugin"]
        command += ["--nri-socket", place / "nri.sock", "--run-dir", self.run_dir]
        command += ["--library", build / "lib" / names.FILE_LIBRARY]
        command += ["--cdi-dir", self._host.directory / "cdi"]
        command += ["--containerd-state", place / "state"]
        command += ["--http", f"unix:{place / 'agent.sock'}"]
        with (place / "agent.log").open("a") as log:
            process = await asyncio.create_subprocess_exec(
                *command, cwd=ROOT, env=environment, stdout=log, stderr=log
            )
        watching = asyncio.create_task(self._watch())
        try:
            async with asyncio.timeout(120):
                runtime = await self._sessions.get()
                yield runtime
                await runtime.close()
        finally:
            watching.cancel()
            process.kill()
            await process.wait()

    async def _watch(self) -> None:
        while True:
            self.most_bytes = max(self.most_bytes, self._group.working_set_bytes)
            await asyncio.sleep(0.02)

    async def create(self, runtime: FakeRuntime) -> None:
        number, part = len(self._pods), 80 * GIB // (2 * CONTAINERS)
        resources = {names.RESOURCE_MEMORY: part, names.RESOURCE_CORE: 0}
        gpus = [80 * GIB] * list(self._host.options).count("--gpu")
        held = config.load(config.DEFAULT_FILE).with_gpus(gpus).gpus
        entries = [DeviceEntry(gpu.minor, resources, gpu.uuid) for gpu in held]
        granted = {"main": [GpuGrant(gpu.uuid, gpu.minor, part, 0) for gpu in held]}
        text = allocation.encode(Allocation({names.DEVICE_TYPE_GPU: entries}))
        of = pod(number, allocated=text, grants=grants.encode(granted))
        what = container(number, sandbox=number)
        reply = None
        while reply is None:
            try:
                reply = await runtime.create(of, what)
            except RequestFailed as refusal:  # a busy machine; the kubelet would try again
                assert "timeout" in str(refusal) and "the kubelet retries" in str(refusal)
        self._pods.append(of)
        self._containers.append(as_made(what, reply))


async def test_the_charts_limit_holds_and_the_agent_comes_back(host: Host, tmp_path: Path) -> None:
    """The agent is killed with the files of 250 containers charged to its pod, and restarted."""
    values = yaml.safe_load((ROOT / "manifests/chart/values.yaml").read_text())
    limit = quantity.parse(values["agent"]["resources"]["limits"]["memory"])
    assert isinstance(limit, quantity.Value) and limit.amount <= 512 << 20
    group = MemoryGroup(f"gpuslice-test-memory-{uuid.uuid4()}", limit.amount)
    node = Node(tmp_path, host, group)
    server = await asyncio.start_unix_server(node.connected, tmp_path / "nri.sock")
    measured = node.run_dir / record.FILE
    try:
        async with node.agent() as runtime:
            await until_async(
                lambda: measured.exists() and json.loads(measured.read_text())["contexts"]
            )
            assert node.most_bytes > _CONTEXT_BYTES
            for _ in range(CONTAINERS):
                await node.create(runtime)
            await asyncio.sleep(3)  # meanwhile the agent measures all containers
        async with node.agent() as runtime:
            await node.create(runtime)
        assert group.killed == 0
        assert node.most_bytes < limit.amount
    finally:
        server.close()
        group.remove()
        clear(RunDirectory(node.run_dir, lambda: 1))
