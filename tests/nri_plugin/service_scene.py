"""A node's directories, the agent's service, and stand-ins for the runtime and NVML's process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from gpuslice.contract import allocation, grants, names
from gpuslice.contract.allocation import Allocation, DeviceEntry
from gpuslice.contract.grants import GpuGrant
from nri_plugin.containers.parts import Parts
from nri_plugin.gpu.contexts import Contexts
from nri_plugin.gpu.inventory import Inventory
from nri_plugin.host import bundle
from nri_plugin.host.files import RunDirectory
from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.nri import connection
from nri_plugin.nri.service import Service
from nri_plugin.settings import Settings
from tests.nri_plugin import fake_nvml
from tests.nri_plugin.cdi_nodes import NODES
from tests.nri_plugin.fake_runtime import FakeRuntime, RequestFailed, connected_pair
from tests.nri_plugin.objects import container as container
from tests.nri_plugin.objects import plain_store
from tests.nri_plugin.objects import pod as pod

UUID = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
TOTAL = 40 << 30
GPUS = json.dumps({"gpus": [{"uuid": UUID, "minor": 0, "memory_bytes": TOTAL, "model": "G"}]})
GRANTS = grants.encode({"main": [GpuGrant(UUID, 0, 5 << 30, 20)]})
LABEL = names.LABEL_ISOLATION_PROVIDER
EDITS = {
    "mounts": [{"hostPath": "/dev/zero", "containerPath": "/dev/gpu0", "options": ["bind"]}],
    "deviceNodes": [
        {"path": "/dev/x", "type": "c", "major": 1, "minor": 3, "fileMode": 0, "uid": 0},
        *NODES,
    ],
}
CDI = {
    "cdiVersion": "0.6.0",
    "kind": names.CDI_KIND,
    "devices": [{"name": UUID, "containerEdits": EDITS}],
    "containerEdits": {
        "hooks": [{"hookName": "createContainer", "path": "/bin/true", "args": ["true"]}]
    },
}


def allocated(resources: dict[str, int]) -> str:
    """Return the annotation of a pod that was allocated these resources of the GPU."""
    return allocation.encode(Allocation({"gpu": [DeviceEntry(0, resources, UUID)]}))


HALF, WHOLE = (
    allocated({names.RESOURCE_MEMORY_RATIO: percent, names.RESOURCE_CORE: percent})
    for percent in (50, 100)
)


class Host:
    def __init__(self, tmp_path: Path) -> None:
        self.run, self.store, self.cdi = (tmp_path / name for name in ("run", "store", "cdi"))
        self.library = tmp_path / "libvgpu.so"
        self.socket = tmp_path / "nri.sock"
        self.library.write_bytes(b"\x7fELF")
        self.cdi.mkdir()
        (self.cdi / "gpu.json").write_text(json.dumps(CDI))
        self.settings = Settings(
            nri_socket=self.socket,
            index="50",
            run_dir=self.run,
            library=self.library,
            cdi_dirs=(self.cdi,),
            containerd_state=tmp_path / "state",
            environment=os.environ,
            work_deadline_s=60.0,
            first_retry_s=0.01,
            last_retry_s=0.02,
        )

    def parts(self, gpus: str = GPUS) -> Parts:
        """Return the agent's parts. A CUDA context takes 300 MiB. gpus: fake_nvml.py's argument."""
        now = asyncio.get_running_loop().time
        nvml = (*fake_nvml.PROGRAM, gpus)
        self.inventory = inventory = Inventory(
            os.environ, deadline_s=60, min_interval_s=5, now=now, command=nvml
        )
        measures = (sys.executable, "-c", "print(300 << 20)")
        self.contexts = Contexts(
            os.environ, inventory, deadline_s=60, min_interval_s=0, now=now, command=measures
        )
        files = RunDirectory(self.run, lambda: 7)
        store = plain_store(self.store, self.library)
        return Parts(self.settings, inventory, self.contexts, files, store)

    def service(self, gpus: str = GPUS) -> Service:
        return Service(self.parts(gpus))

    def keys(self) -> set[str]:
        return set(os.listdir(self.run)) if self.run.exists() else set()


@contextlib.asynccontextmanager
async def serving(
    handler: Service,
    pods: Sequence[nri.PodSandbox] = (),
    containers: Sequence[nri.Container] = (),
    nri_version: tuple[int, int, int] = (0, 12, 5),
    settled: bool = True,
) -> AsyncIterator[FakeRuntime]:
    """Connect `handler` with a runtime during the block. settled: first wait for the work that
    follows Synchronize."""
    theirs, ours = await connected_pair()
    runtime = FakeRuntime(*theirs, nri_version=nri_version)
    task = asyncio.create_task(connection.serve(ours, handler.handle, name="gpuslice", index="50"))
    try:
        await runtime.handshake(pods, containers)
        if settled:
            await handler.records.settled()
        yield runtime
    finally:
        await runtime.close()
        await asyncio.wait([task])
        task.exception()
        await handler._parts.inventory.close()


def sandbox(state: Path, name: str, program: str, **process: str) -> Path:
    """Make a sandbox as containerd does. Return the file that names its OCI runtime's program."""
    made = bundle.directory(state, name)
    made.mkdir(parents=True)
    (made / "config.json").write_text(json.dumps({"process": {"cwd": "/", **process}}))
    (made / "runtime").write_text(program)
    return made / "runtime"


def as_made(of: nri.Container, reply: nri.CreateContainerResponse | None) -> nri.Container:
    """Return the container as the runtime describes it once the reply's mounts are added."""
    made = nri.Container()
    made.CopyFrom(of)
    if reply is not None:
        made.mounts.extend(reply.adjust.mounts)
    return made


async def refused(runtime: FakeRuntime, of: nri.PodSandbox, what: nri.Container) -> str:
    with pytest.raises(RequestFailed) as failed:
        await runtime.create(of, what)
    assert runtime.dropped is None
    return failed.value.message
