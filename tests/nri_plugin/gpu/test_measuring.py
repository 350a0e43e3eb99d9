"""The agent's measurements of containers: the driver's memory beyond their charge, and compute.

The last test has NVML's real process, and a real program under the library.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest

from gpuslice.contract import grant_file, lease_file, names, region_file
from gpuslice.contract.region_file import Compute, Geometry
from nri_plugin.gpu.audit import Audit, Sample, Suspicion
from nri_plugin.gpu.measuring import Measuring
from nri_plugin.gpu.nvml_process import COMMAND, NvmlProcess
from nri_plugin.metrics import Metrics
from nri_plugin.policy.ledger import Hold
from nri_plugin.policy.model import Gpu, Pod
from nri_plugin.policy.notices import Notices
from tests.nri_plugin import fake_nvml
from tests.shim.conftest import CONTEXT_BYTES, GPUS, MIB, Host, gpu_host, library
from tests.shim.exact import CODE
from tests.support import GIB, Clock

__all__ = ["gpu_host", "library"]

GPU = "GPU-1"
LABELS = {"namespace": "d", "pod": "p", "container": "main", "uuid": GPU}
THROTTLED = "gpuslice_container_gpu_throttled_seconds_total"


class Node:
    """A run directory, /proc and NVML's answers. The agent starts at its first sample."""

    def __init__(
        self,
        root: Path,
        uuid: str = GPU,
        command: Sequence[str] = (),
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.root, self.proc, self.answers = root, root / "proc", root / "usage"
        self.proc.mkdir()
        self.uuid, self.environment = uuid, environment
        self.command = command or (*fake_nvml.PROGRAM, str(self.answers))
        self.metrics, self.notices, self.clock = Metrics(), Notices(), Clock()
        self.holds: list[Hold] = []
        self._agents: list[Measuring] = []

    def start(self) -> Measuring:
        """Start the agent, or a new one after a restart."""
        nvml = NvmlProcess(
            self.environment, deadline_s=60.0, pause_s=10.0, now=self.clock, command=self.command
        )
        given = (self.root, lambda: self.holds, nvml, self.metrics, self.notices)
        self._agents.append(Measuring(*given, deadline_s=60.0, now=self.clock, proc=self.proc))
        return self._agents[-1]

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
        offset = Geometry(1).gpu_offset(0)
        self._write(directory.name, offset, charged_bytes.to_bytes(8, "little"))

    def one(self) -> None:
        """Add a container that is charged 500 bytes. NVML lists 700 bytes of its process."""
        self.add("c1", 500)
        self.process("c1", 11)
        self.nvml({11: 700})

    def refused(self, key: str, count: int) -> None:
        offset = Geometry(1).gpu_offset(0) + region_file.GPU.offset("refused_count")
        self._write(key, offset, count.to_bytes(8, "little"))

    def works(self, key: str, work: Compute) -> None:
        packed = region_file.COMPUTE.pack(work._asdict())
        self._write(key, Geometry(1).compute_offset(0), packed)

    def slot(self, key: str, number: int, state: int, float_bytes: int) -> None:
        geometry = Geometry(1)
        slot = {"pid": 1, "start_ticks": 0, "pid_namespace": 0, "generation": 2, "shared_key": 0}
        of_gpu = {"bytes": 0, "sequence": 0, "delta_bytes": 0, "delta_sequence": 0}
        packed = region_file.SLOT.pack({"state": state, **slot})
        packed += region_file.SLOT_GPU.pack({**of_gpu, "float_bytes": float_bytes})
        self._write(key, geometry.slots_offset + number * geometry.slot_stride, packed)

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


@pytest.fixture
def node(tmp_path: Path) -> aclosing[Node]:
    return aclosing(Node(tmp_path))


async def test_a_container_s_processes_are_summed_and_the_rest_is_written(node: Node) -> None:
    node.add("c1", 500)
    node.add("c2", key="shared")
    node.add("c3", key="shared")
    node.process("c1", 11, 12)
    node.process("c2", 21)
    node.process("c3", 31)
    node.process("of another", 99)
    node.nvml({11: 400, 12: 300, 21: 30, 31: 20, 99: 10_000, 100: 7})
    await node.sample(2)
    assert (node.overhead(), node.overhead("shared")) == (0, 0)
    await node.sample(1)
    assert (node.overhead(), node.overhead("shared")) == (200, 50)
    assert node.metric("gpuslice_overhead_bytes", uuid=GPU) == 250
    assert node.not_measured == 0


async def test_the_memory_of_a_container_is_shown_with_and_without_nvml(node: Node) -> None:
    used, refused = "memory_used_bytes", "refused_allocations_total"

    def shown(*names: str) -> list[float | None]:
        return [node.metric(f"gpuslice_container_gpu_{name}", **LABELS) for name in names]

    node.one()
    await node.sample()
    assert shown(used, "memory_limit_bytes", refused) == [500, 10 * GIB, 0]
    node.command = (sys.executable, "-c", "import sys; sys.exit('no driver')")
    node.start()
    await node.sample(1)
    assert shown(used, "memory_overhead_bytes") == [700, 200]
    node.add("c1", 2**64 - 1)
    node.refused("c1", 2)
    await node.sample(1)
    assert shown(used, refused) == [10 * GIB + 200, 2], "a tenant may write any charge"
    node.holds.clear()
    node.agent.gpus = lambda: [Gpu(GPU, 0, 80 * GIB)]
    await node.sample(1)
    assert shown(used, refused) == [None, None]
    assert node.metric("gpuslice_gpu_memory_used_bytes", uuid=GPU) == 0


async def test_memory_above_the_limit_counts_when_it_rises(node: Node) -> None:
    node.one()
    counts = []
    for held in (10 * GIB, 10 * GIB + 1, 12 * GIB, None, 12 * GIB, 9 * GIB, 11 * GIB):
        node.nvml({11: held})
        await node.sample(1)
        counts.append(node.metric("gpuslice_container_gpu_limit_violations_total", **LABELS))
    assert counts == [0, 1, 1, 1, 1, 1, 2]


async def test_processes_without_a_share_are_unhandled_by_control_group(node: Node) -> None:
    node.one()
    node.process("other", 21, 22)
    node.process("third", 23)
    node.process("agent", 31)
    (node.proc / "self").symlink_to("31")
    node.nvml({11: 700, 21: 5, 22: 5, 23: 5, 31: 5, 99: 5})
    await node.sample(1)
    unhandled = "gpuslice_gpu_unhandled_containers"
    assert node.metric(unhandled, uuid=GPU, reason="no_share") == 2, (
        "neither the agent nor an exited process"
    )
    node.agent.whole = lambda: {GPU}
    await node.sample(1)
    assert node.metric(unhandled, uuid=GPU, reason="no_share") == 0


async def test_a_float_in_the_charge_hides_no_overhead(node: Node) -> None:
    node.add("c1", 500 + 128 * MIB)
    for number, (state, float_bytes) in enumerate(
        (
            (region_file.SLOT_LIVE, 64 * MIB),
            (region_file.SLOT_FREE, 64 * MIB),
            (region_file.SLOT_LIVE, 1),  # by an older library
            (region_file.SLOT_SHARED, 64 * MIB),
            (region_file.SLOT_LIVE, 64 * MIB),
        )
    ):
        node.slot("c1", number, state, float_bytes)
    node.process("c1", 11)
    node.nvml({11: 700})
    await node.sample()
    assert node.overhead() == 200
    node.slot("c1", 4, region_file.SLOT_LIVE, 32 * MIB)
    await node.sample(1)
    assert node.overhead() == 0, "a float changes without the counter"


async def test_processes_that_nvml_does_not_list_have_no_figure(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """NVML does not list processes that MPS hides. A listed process that vanishes has exited."""
    node.one()
    await node.sample()
    node.nvml({11: None})
    await node.sample()
    assert node.not_measured == 1
    caplog.clear()
    node.start()
    for is_listed in (False, True):
        node.nvml({} if is_listed else None)
        await node.sample(5)
        assert (node.overhead(), node.not_measured) == (200, 1)
    said = [each for each in caplog.messages if "no figure" in each]
    assert len(said) == 1 and "c1" in said[0]
    node.nvml({11: 700})
    await node.sample()
    node.nvml({})
    await node.sample()
    assert node.overhead() == 0


async def test_a_restarted_agent_leaves_the_last_figure_until_it_has_its_own(node: Node) -> None:
    node.one()
    await node.sample()
    node.nvml({11: 650})
    node.start()
    await node.sample(2)
    assert node.overhead() == 200
    await node.sample(1)
    assert node.overhead() == 150


async def test_a_grant_that_cannot_be_read_is_passed_over(node: Node) -> None:
    node.one()
    node.add("c2")
    node.add("c3")
    (node.root / "c2" / names.FILE_REGION).write_bytes(b"")
    (node.root / "c3" / names.FILE_GRANT).unlink()
    await node.sample()
    assert node.overhead() == 200
    assert node.not_measured == 2


async def test_another_grant_gets_nothing_of_a_sample_under_way(node: Node) -> None:
    """During the NVML query the container is removed, and another one gets the same directory."""
    node.one()
    await node.sample(2)
    await node.agent.nvml.close()
    move = f"cd {node.root}; mv c1 old; cp -r old c1; exec {' '.join(node.command)}"
    node.agent.nvml.child.command = ("sh", "-c", move)
    await node.sample(1)
    assert (node.overhead("old"), node.overhead()) == (200, 0)


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("import sys; sys.stderr.write('NVML: Driver Not Loaded\\n'); sys.exit(1)", "Not Loaded"),
        ("import sys\nfor _ in sys.stdin: print('never mind', flush=True)", "unreadable answer"),
    ],
    ids=["no driver", "not JSON"],
)
async def test_nvml_that_does_not_answer_is_not_queried_for_a_while(
    node: Node, script: str, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    node.one()
    child, age = node.agent.nvml.child, "gpuslice_sample_age_seconds"
    works, child.command = child.command, (sys.executable, "-c", script)
    node.clock.seconds += 10.0
    await node.sample()
    assert (node.overhead(), node.not_measured) == (0, 1)
    assert node.metric(age) == 10, "none was taken"
    said = [text for text in caplog.messages if "not measured" in text]
    assert [problem in text for text in said] == [True], "once"
    if child.lingering is not None:
        await child.lingering.wait()
    child.command = works
    await node.sample()
    assert node.overhead() == 0, "asked again too soon"
    node.clock.seconds += 10.0
    assert node.metric(age) == 20
    await node.sample()
    assert (node.overhead(), node.metric(age)) == (200, 0)
    assert sum("measured again" in text for text in caplog.messages) == 1


async def test_the_use_of_compute_is_read_whether_or_not_nvml_answers(node: Node) -> None:
    node.command = (sys.executable, "-c", "import sys; sys.exit('no driver')")
    node.add("c1")
    node.works("c1", Compute(throttled_ns=7_000_000_000))
    await node.sample(1)
    assert node.metric(THROTTLED, **LABELS) == 0
    long_ago_ns = time.monotonic_ns() - 3_000_000_000
    node.works("c1", Compute(throttled_ns=7_000_400_000, unfinished_since_ns=long_ago_ns))
    await node.sample(1)
    assert node.metric(THROTTLED, **LABELS) == pytest.approx(0.0004)
    assert node.metric("gpuslice_long_kernel_containers_total") == 1
    assert node.notices.first() is not None
    node.holds.clear()
    await node.sample(1)
    assert node.metric(THROTTLED, **LABELS) is None


async def test_unused_gpus_are_measured_less_often(node: Node) -> None:
    node.add("c1")
    node.process("c1", 11)

    async def pauses_s(*listed: dict[int, int | None]) -> list[float]:
        found = []
        for held in listed:
            node.nvml(held)
            await node.sample(1)
            found.append(node.agent.pause_s)
        return found

    assert await pauses_s({}, {}) == [1, 5.2]
    assert await pauses_s({11: 5}, {}) == [1, 5.2]
    node.works("c1", Compute(spent_ns=1))
    assert await pauses_s({}, {}) == [1, 5.2]
    node.add("c2")
    assert await pauses_s({}) == [1]


class Auditor(Audit):
    """Counts its looks. Its suspicions are the processes that NVML lists."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.root, node.metrics, node.notices, lambda *_: None)
        self.seen: list[Sample] = []

    def look(self, sample: Sample) -> Sequence[Suspicion]:
        self.seen.append(sample)
        return ()

    def report(self, sample: Sample, seen: Sequence[Suspicion]) -> bool:
        return any(self.seen[-1].owners) and not any(self.seen[-2].owners)


async def test_the_audit_looks_often_and_soon_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add("c1")
    node.process("c1", 11)
    node.nvml({})
    node.agent.audit = auditor = Auditor(node)
    slept_s: list[float] = []

    async def sleep(seconds: float) -> None:
        slept_s.append(round(seconds, 3))
        if len(slept_s) in (1, 6):
            node.nvml({11: 5})
        if len(slept_s) == 2:
            node.nvml({})
        if len(slept_s) == 8:
            raise asyncio.CancelledError

    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await node.agent.run()
    # Used: a sample each second, and at once a second look. Unused: looks between two samples.
    assert slept_s == [1, 0.3, 0.7, 1.3, 1.3, 1.3, 0.3, 1]
    assert [len(each.owners) for each in auditor.seen] == [0, 1, 0, 0, 0, 0, 1, 1]
    assert {each.holds[0].container_id for each in auditor.seen} == {"c1"}


async def test_a_truncated_region_has_no_use_of_compute(node: Node) -> None:
    node.add("c1")
    os.truncate(node.root / "c1" / names.FILE_REGION, Geometry(1).compute_offset(0))
    node.nvml({})
    await node.sample(2)
    assert node.metric(THROTTLED, **LABELS) == 0
    assert node.not_measured == 0


async def test_nvmls_utilization_is_that_of_the_containers_processes(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    node.add("c1")
    node.process("c1", 11, 12)
    node.process("c2", 21)

    async def sampled(utilized: dict[int, int] | None) -> float | None:
        node.nvml({11: 400, 12: 300, 21: 50}, utilized)
        await node.sample(1)
        return node.metric("gpuslice_container_gpu_nvml_utilization_ratio", **LABELS)

    assert await sampled({11: 20, 12: 9, 21: 60}) == pytest.approx(0.29)
    assert await sampled({21: 60}) == 0 and not caplog.messages
    assert [await sampled(None), await sampled(None)] == [None, None]
    assert await sampled({11: 30}) == pytest.approx(0.3)
    node.holds.clear()
    assert await sampled({11: 30}) is None
    assert sum("NVML has no utilization" in text for text in caplog.messages) == 1


def test_the_overhead_of_real_programs_is_measured(gpu_host: Host, tmp_path: Path) -> None:
    """The library and the simulated driver run. The test writes only the control groups."""
    node = Node(tmp_path, GPUS[0][0], COMMAND, gpu_host.environment(None, preload=False))
    node.add("c1")

    async def measure() -> None:
        async with aclosing(node):
            await node.sample()

    work = "must(d.cuMemAlloc(100 * MIB)); run(entry(load(80)))\n"
    with gpu_host.serving(CODE + work, tmp_path / "c1") as program:
        node.process("c1", program.pid)
        asyncio.run(measure())
    # The grant states no context size. So the context is not charged, and counts as overhead.
    assert node.overhead() == CONTEXT_BYTES + 80 * MIB
