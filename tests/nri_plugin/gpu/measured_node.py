"""A run directory, /proc and NVML's answers as tests write them, and how the agent measures them.

The child that queries NVML is real; it prints answers that a test wrote, fails or hangs.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gpuslice.contract import grant_file, lease_file, names, region_file
from nri_plugin.gpu.measuring import Measuring
from nri_plugin.gpu.nvml_process import NvmlProcess
from nri_plugin.metrics import Metrics
from nri_plugin.policy.ledger import Hold
from nri_plugin.policy.model import Pod
from nri_plugin.policy.notices import Notices
from tests.nri_plugin import fake_nvml
from tests.shim.conftest import GIB

GPU = "GPU-1"
LABELS = {"namespace": "d", "pod": "p", "container": "main", "uuid": GPU}
THROTTLED = "gpuslice_container_gpu_throttled_seconds_total"


@dataclass
class Node:
    """A run directory, /proc and NVML as tests write them."""

    root: Path
    uuid: str = GPU
    command: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    utilized: dict[int, int] | None = None
    seconds: float = 100.0

    def __post_init__(self) -> None:
        self.metrics = Metrics()
        self.notices = Notices()
        self.holds: list[Hold] = []
        self.command = self.command or (*fake_nvml.PROGRAM, str(self.root / "usage"))
        self.proc = self.root / "proc"

    def add(self, container_id: str, key: str, charged_bytes: int) -> None:
        """A running container, and its grant."""
        self.holds.append(Hold(container_id, key, "u", "main", "d/p/main", {}, Pod("u", "d", "p")))
        directory = self.root / key
        if not directory.exists():
            directory.mkdir(parents=True)
            grant = grant_file.Grant(7, (grant_file.Gpu(self.uuid, 10 * GIB, 100, 0),))
            (directory / names.FILE_GRANT).write_bytes(grant_file.fresh(grant))
            (directory / names.FILE_REGION).write_bytes(region_file.fresh(1, 7))
            lease = lease_file.fresh(1, launches_checked=False)
            (directory / names.FILE_LEASE).write_bytes(lease)
        self.charge(key, charged_bytes)

    def one(self) -> None:
        """A container that is charged 500 bytes; NVML lists 700 of its process."""
        self.add("c1", "key-1", 500)
        self.process(11, "c1")
        self.nvml({11: 700})

    def charge(self, key: str, charged_bytes: int) -> None:
        at = region_file.Geometry(1).gpu_offset(0)
        with (self.root / key / names.FILE_REGION).open("r+b") as file:
            file.seek(at)
            file.write(charged_bytes.to_bytes(8, "little"))

    def works(self, key: str, work: region_file.Compute) -> None:
        """The container's work on the GPU, as the library writes it."""
        with (self.root / key / names.FILE_REGION).open("r+b") as file:
            file.seek(region_file.Geometry(1).compute_offset(0))
            file.write(region_file.COMPUTE.pack(asdict(work)))

    def process(self, pid: int, container_id: str) -> None:
        (self.proc / str(pid)).mkdir(parents=True)
        (self.proc / str(pid) / "cgroup").write_text(f"0::/kubepods/pod-u/{container_id}\n")

    def nvml(self, held: dict[int, int | None] | None) -> None:
        answer = {"memory": {self.uuid: held}, "utilization": {self.uuid: self.utilized}}
        (self.root / "usage").write_text(json.dumps(answer))

    def measuring(self) -> Measuring:
        return Measuring(
            self.root,
            lambda: self.holds,
            NvmlProcess(
                self.environment,
                deadline_s=60.0,
                pause_s=10.0,
                now=lambda: self.seconds,
                command=self.command,
            ),
            self.metrics,
            self.notices,
            deadline_s=60.0,
            now=lambda: self.seconds,
            proc=self.proc if self.proc.exists() else Path("/proc"),
        )

    def overhead(self, key: str) -> int:
        grant = grant_file.decode((self.root / key / names.FILE_GRANT).read_bytes())
        assert grant is not None
        return grant.gpus[0].overhead_bytes

    def metric(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


def during(measuring: Measuring, work: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        try:
            await work()
        finally:
            await measuring.nvml.close()

    asyncio.run(run())


def sample(measuring: Measuring, times: int = 3) -> None:
    async def work() -> None:
        for _ in range(times):
            await measuring.sample()

    during(measuring, work)
