"""A run directory, /proc and NVML's answers as tests write them, and how the agent measures them.

The child that queries NVML is real; it prints answers that a test wrote, fails or hangs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from gpuslice.contract import grant_file, lease_file, names, region_file
from nri_plugin.gpu.measuring import Measuring
from nri_plugin.gpu.nvml_process import NvmlProcess
from nri_plugin.metrics import Metrics
from nri_plugin.policy.ledger import Hold
from nri_plugin.policy.model import Pod
from nri_plugin.policy.notices import Notices
from tests.nri_plugin import fake_nvml
from tests.support import GIB, Clock

GPU = "GPU-1"
LABELS = {"namespace": "d", "pod": "p", "container": "main", "uuid": GPU}
THROTTLED = "gpuslice_container_gpu_throttled_seconds_total"


class Node:
    """The agent starts at the first sample."""

    def __init__(
        self,
        root: Path,
        uuid: str = GPU,
        command: Sequence[str] = (),
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.root, self.proc, self.answers = root, root / "proc", root / "usage"
        self.uuid, self.environment = uuid, environment
        self.command = command or (*fake_nvml.PROGRAM, str(self.answers))
        self.metrics, self.notices, self.clock = Metrics(), Notices(), Clock()
        self.holds: list[Hold] = []
        self._agents: list[Measuring] = []

    def start(self) -> Measuring:
        """Start the agent, again."""
        nvml = NvmlProcess(
            self.environment, deadline_s=60.0, pause_s=10.0, now=self.clock, command=self.command
        )
        agent = Measuring(
            self.root,
            lambda: self.holds,
            nvml,
            self.metrics,
            self.notices,
            deadline_s=60.0,
            now=self.clock,
            proc=self.proc,
        )
        self._agents.append(agent)
        return agent

    @property
    def agent(self) -> Measuring:
        return self._agents[-1] if self._agents else self.start()

    async def sample(self, times: int = 3) -> None:
        for _ in range(times):
            await self.agent.sample()

    async def aclose(self) -> None:
        for each in self._agents:
            await each.nvml.close()

    def add(self, container: str, charged_bytes: int = 0, key: str = "") -> None:
        """A running container, and its grant."""
        directory = self.root / (key or container)
        pod = Pod("u", "d", "p")
        self.holds.append(Hold(container, directory.name, "u", "main", "d/p/main", {}, pod))
        if not directory.exists():
            directory.mkdir(parents=True)
            grant = grant_file.Grant(7, (grant_file.Gpu(self.uuid, 10 * GIB, 100, 0),))
            (directory / names.FILE_GRANT).write_bytes(grant_file.fresh(grant))
            (directory / names.FILE_REGION).write_bytes(region_file.fresh(1, 7))
            lease = lease_file.fresh(1, launches_checked=False)
            (directory / names.FILE_LEASE).write_bytes(lease)
        offset = region_file.Geometry(1).gpu_offset(0)
        self._write(directory.name, offset, charged_bytes.to_bytes(8, "little"))

    def one(self) -> None:
        """A container that is charged 500 bytes; NVML lists 700 of its process."""
        self.add("c1", 500)
        self.process("c1", 11)
        self.nvml({11: 700})

    def works(self, key: str, work: region_file.Compute) -> None:
        """The container's work on the GPU, as the library writes it."""
        packed = region_file.COMPUTE.pack(asdict(work))
        self._write(key, region_file.Geometry(1).compute_offset(0), packed)

    def _write(self, key: str, offset: int, data: bytes) -> None:
        with (self.root / key / names.FILE_REGION).open("r+b") as file:
            file.seek(offset)
            file.write(data)

    def process(self, container: str, *pids: int) -> None:
        for pid in pids:
            (self.proc / str(pid)).mkdir(parents=True)
            (self.proc / str(pid) / "cgroup").write_text(f"0::/kubepods/pod-u/{container}\n")

    def nvml(
        self, held: dict[int, int | None] | None, utilized: dict[int, int] | None = None
    ) -> None:
        answer = {"memory": {self.uuid: held}, "utilization": {self.uuid: utilized}}
        self.answers.write_text(json.dumps(answer))

    def overhead(self, key: str = "c1") -> int:
        grant = grant_file.decode((self.root / key / names.FILE_GRANT).read_bytes())
        assert grant is not None
        return grant.gpus[0].overhead_bytes

    def metric(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)

    @property
    def not_measured(self) -> float | None:
        return self.metric("gpuslice_containers_not_measured")
