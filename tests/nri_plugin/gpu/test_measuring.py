"""The agent's measurement of the driver's own memory: real children and real files.

The child prints answers that a test wrote, fails or hangs; in the last tests it is the real one,
over a simulated driver, and the processes are real programs under the library.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from contract import grant_file, names, region_file
from nri_plugin.gpu.measuring import COMMAND, Measuring, container_of
from nri_plugin.metrics import Metrics
from nri_plugin.policy.ledger import Hold
from nri_plugin.policy.model import Pod
from nri_plugin.policy.notices import Notices
from tests.shim.conftest import CONTEXT_BYTES, GIB, GPUS, MIB, Host, gpu_host, library
from tests.shim.exact import CODE

__all__ = ["gpu_host", "library"]

GPU = "GPU-1"
LABELS = {"namespace": "d", "pod": "p", "container": "main", "uuid": GPU}
THROTTLED = "gpuslice_container_gpu_throttled_seconds_total"
ANSWER = """
import sys
for line in sys.stdin:
    print(open(sys.argv[1]).read().replace("\\n", ""), flush=True)
"""
BAD_ANSWER = "import sys\nfor line in sys.stdin: print({!r}, flush=True)"


@dataclass
class Node:
    """A run directory, /proc and NVML as tests write them."""

    root: Path
    uuid: str = GPU
    command: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    utilized: dict[int, int] | None = None
    seconds: float = 100.0
    deadline_s: float = 60.0

    def __post_init__(self) -> None:
        self.metrics = Metrics()
        self.notices = Notices()
        self.holds: list[Hold] = []
        self.command = self.command or (sys.executable, "-c", ANSWER, str(self.root / "usage"))
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
        self.charge(key, charged_bytes)

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
            self.environment,
            self.metrics,
            self.notices,
            deadline_s=self.deadline_s,
            min_interval_s=10.0,
            now=lambda: self.seconds,
            command=self.command,
            proc=self.proc if self.proc.exists() else Path("/proc"),
        )

    def overhead(self, key: str) -> int:
        grant = grant_file.decode((self.root / key / names.FILE_GRANT).read_bytes())
        assert grant is not None
        return grant.gpus[0].overhead_bytes

    def metric(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def during(measuring: Measuring, work: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        try:
            await work()
        finally:
            await measuring._server.close()

    asyncio.run(run())


def sample(measuring: Measuring, times: int = 3) -> None:
    async def work() -> None:
        for _ in range(times):
            await measuring.sample()

    during(measuring, work)


def test_a_container_s_processes_are_summed_and_the_rest_is_written(node: Node) -> None:
    node.add("c1", "key-1", 500)
    node.add("c2", "key-2", 0)
    node.process(11, "c1")
    node.process(12, "c1")
    node.process(21, "c2")
    node.process(99, "of another")
    node.nvml({11: 400, 12: 300, 21: 50, 99: 10_000, 100: 7})
    measuring = node.measuring()
    sample(measuring, 2)
    assert (node.overhead("key-1"), node.overhead("key-2")) == (0, 0)
    sample(measuring, 1)
    assert (node.overhead("key-1"), node.overhead("key-2")) == (200, 50)
    assert node.metric("gpuslice_overhead_bytes", uuid=GPU) == 250
    assert node.metric("gpuslice_containers_not_measured") == 0


def test_containers_that_share_a_grant_are_measured_together(node: Node) -> None:
    node.add("c1", "pod-u", 500)
    node.add("c2", "pod-u", 500)
    node.process(11, "c1")
    node.process(21, "c2")
    node.nvml({11: 400, 21: 300})
    sample(node.measuring())
    assert node.overhead("pod-u") == 200


@pytest.mark.parametrize("held", [None, {11: None}], ids=["GPU", "process"])
def test_without_a_figure_the_last_one_stands(
    node: Node, held: dict[int, int | None] | None
) -> None:
    node.add("c1", "key-1", 500)
    node.process(11, "c1")
    node.nvml({11: 700})
    measuring = node.measuring()
    sample(measuring)
    node.nvml(held)
    sample(measuring)
    assert node.overhead("key-1") == 200
    assert node.metric("gpuslice_containers_not_measured") == 1


def test_processes_that_nvml_does_not_list_have_no_figure(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """As under MPS. Their exit is derived from the listing: they were in it before."""
    node.add("c1", "key-1", 500)
    node.process(11, "c1")
    node.nvml({11: 700})
    sample(node.measuring())
    node.nvml({})
    again = node.measuring()
    sample(again, 5)
    assert node.overhead("key-1") == 200
    assert node.metric("gpuslice_containers_not_measured") == 1
    said = [each for each in caplog.messages if "no figure" in each]
    assert len(said) == 1 and "key-1" in said[0]
    node.nvml({11: 700})
    sample(again)
    node.nvml({})
    sample(again)
    assert node.overhead("key-1") == 0


def test_an_agent_that_starts_anew_leaves_the_last_figure_until_it_has_its_own(node: Node) -> None:
    node.add("c1", "key-1", 500)
    node.process(11, "c1")
    node.nvml({11: 700})
    sample(node.measuring())
    node.nvml({11: 650})
    again = node.measuring()
    sample(again, 2)
    assert node.overhead("key-1") == 200
    sample(again, 1)
    assert node.overhead("key-1") == 150


def test_a_grant_that_cannot_be_read_is_passed_over(node: Node) -> None:
    node.add("c1", "key-1", 500)
    node.add("c2", "key-2", 0)
    node.add("c3", "key-3", 0)
    (node.root / "key-1" / names.FILE_REGION).write_bytes(b"")
    (node.root / "key-3" / names.FILE_GRANT).unlink()
    node.process(21, "c2")
    node.nvml({21: 50})
    sample(node.measuring())
    assert node.overhead("key-2") == 50
    assert node.metric("gpuslice_containers_not_measured") == 2


def test_another_grant_in_the_same_place_gets_nothing_of_a_sample_under_way(node: Node) -> None:
    """The container is removed, and another created, during the NVML query."""
    node.add("c1", "key-1", 500)
    node.process(11, "c1")
    node.nvml({11: 700})
    measuring = node.measuring()
    sample(measuring, 2)
    script = f"""
import os, shutil, sys
for line in sys.stdin:
    os.rename({str(node.root / "key-1")!r}, {str(node.root / "old")!r})
    shutil.copytree({str(node.root / "old")!r}, {str(node.root / "key-1")!r})
    print(open({str(node.root / "usage")!r}).read(), flush=True)
"""
    measuring._server._child.command = (sys.executable, "-c", script)
    sample(measuring, 1)
    assert (node.overhead("old"), node.overhead("key-1")) == (200, 0)


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("import sys; sys.stderr.write('NVML: Driver Not Loaded\\n'); sys.exit(1)", "Not Loaded"),
        (BAD_ANSWER.format("never mind"), "Expecting value"),
        (BAD_ANSWER.format("[]"), "not an answer"),
        ("import time; time.sleep(600)", "did not answer in 0.5 s"),
    ],
    ids=["no driver", "not JSON", "not a mapping", "hangs"],
)
def test_nvml_that_does_not_answer_is_let_alone_for_a_while(
    node: Node, script: str, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    node.add("c1", "key-1", 500)
    node.process(11, "c1")
    node.command = (sys.executable, "-c", script)
    node.deadline_s = 0.5 if "sleep" in script else 60.0
    measuring = node.measuring()
    server = measuring._server

    async def samples() -> int:
        for _ in range(3):
            await measuring.sample()
        return node.overhead("key-1")

    async def work() -> None:
        assert await samples() == 0
        assert node.metric("gpuslice_containers_not_measured") == 1
        said = [text for text in caplog.messages if "not measured" in text]
        assert [problem in text for text in said] == [True], "once"
        if server._process is not None:
            return
        if server._child.lingering is not None:
            await server._child.lingering.wait()
        server._child.command = (sys.executable, "-c", ANSWER, str(node.root / "usage"))
        server._child.deadline_s = measuring._deadline_s = 60.0
        node.nvml({11: 700})
        assert await samples() == 0, "asked again too soon"
        node.seconds += 10.0
        assert await samples() == 200
        assert any("measured again" in text for text in caplog.messages)

    during(measuring, work)


def test_the_use_of_compute_is_read_whether_or_not_nvml_answers(node: Node) -> None:
    node.command = (sys.executable, "-c", "import sys; sys.exit('no driver')")
    node.add("c1", "key-1", 0)
    measuring = node.measuring()
    node.works("key-1", region_file.Compute(throttled_ns=7_000_000_000))
    sample(measuring, 1)
    assert node.metric(THROTTLED, **LABELS) == 0
    long_ago_ns = time.monotonic_ns() - 3_000_000_000
    work = region_file.Compute(throttled_ns=7_000_400_000, unfinished_since_ns=long_ago_ns)
    node.works("key-1", work)
    sample(measuring, 1)
    throttled_s = node.metric(THROTTLED, **LABELS)
    assert throttled_s == pytest.approx(0.0004)
    assert node.metric("gpuslice_long_kernel_containers_total") == 1
    assert node.notices.first() is not None
    node.holds.clear()
    sample(measuring, 1)
    assert node.metric(THROTTLED, **LABELS) is None


def test_unused_gpus_are_measured_less_often(node: Node) -> None:
    node.add("c1", "key-1", 0)
    node.process(11, "c1")
    measuring = node.measuring()

    async def pause_s(held: dict[int, int | None]) -> float:
        node.nvml(held)
        await measuring.sample()
        return measuring.pause_s

    async def work() -> None:
        assert [await pause_s({}), await pause_s({})] == [1, 3]
        assert [await pause_s({11: 5}), await pause_s({})] == [1, 3]
        node.works("key-1", region_file.Compute(busy_ns=1))
        assert [await pause_s({}), await pause_s({})] == [1, 3]
        node.add("c2", "key-2", 0)
        assert await pause_s({}) == 1

    during(measuring, work)


def test_a_region_of_an_older_agent_has_no_use_of_compute(node: Node) -> None:
    node.add("c1", "key-1", 0)
    file = node.root / "key-1" / names.FILE_REGION
    os.truncate(file, region_file.Geometry(1).compute_offset(0))
    node.nvml({})
    sample(node.measuring(), 2)
    assert node.metric(THROTTLED, **LABELS) == 0
    assert node.metric("gpuslice_containers_not_measured") == 0


def test_nvmls_utilization_is_that_of_the_containers_processes(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    node.add("c1", "key-1", 0)
    node.process(11, "c1")
    node.process(12, "c1")
    node.process(21, "c2")
    utilization = "gpuslice_container_gpu_nvml_utilization_ratio"
    measuring = node.measuring()

    async def sampled(utilized: dict[int, int] | None) -> float | None:
        node.utilized = utilized
        node.nvml({11: 400, 12: 300, 21: 50})
        await measuring.sample()
        return node.metric(utilization, **LABELS)

    async def work() -> None:
        assert await sampled({11: 20, 12: 9, 21: 60}) == pytest.approx(0.29)
        assert await sampled({21: 60}) == 0
        for _ in range(2):
            assert await sampled(None) is None
        assert await sampled({11: 30}) == pytest.approx(0.3)
        node.holds.clear()
        assert await sampled({11: 30}) is None

    during(measuring, work)
    assert sum("NVML has no utilization" in text for text in caplog.messages) == 1


def test_the_child_ends_a_minute_after_the_last_container_with_a_gpu(node: Node) -> None:
    """Short-lived pods do not start one each second."""
    node.add("c1", "key-1", 0)
    node.nvml({})
    measuring = node.measuring()

    async def work() -> None:
        await measuring.sample()
        child = measuring._server._process
        assert child is not None and child.returncode is None
        node.holds.clear()
        for _ in range(59):
            await measuring.sample()
        assert measuring._server._process is child and child.returncode is None
        await measuring.sample()
        assert measuring._server._process is None and child.returncode == 0

    during(measuring, work)


def test_the_overhead_of_real_programs_is_measured(gpu_host: Host, tmp_path: Path) -> None:
    """The library, the simulated driver and its NVML; only the control groups are written here."""
    uuid = GPUS[0][0]
    environment = dict(gpu_host.environment(None, preload=False))
    node = Node(tmp_path, uuid, tuple(COMMAND), environment)
    node.add("c1", "key-1", 0)
    begin = "must(d.cuMemAlloc(100 * MIB)); run(entry(load(80))); print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", CODE + begin],
        env=gpu_host.environment(tmp_path / "key-1"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"1\n"
        node.process(process.pid, "c1")
        measuring = node.measuring()
        sample(measuring)
        process.communicate(b"\n")
    # This grant has no context size.
    assert node.overhead("key-1") == CONTEXT_BYTES + 80 * MIB


ID = "4f0d" * 16
OTHER = "5e1c" * 16
POD = "kubepods-burstable-pod3b6c9d1e_0f2a_4c55_9d7e_1a2b3c4d5e6f.slice"
UID = "pod3b6c9d1e-0f2a-4c55-9d7e-1a2b3c4d5e6f"


@pytest.mark.parametrize(
    "cgroup",
    [
        f"0::/kubepods.slice/kubepods-burstable.slice/{POD}/cri-containerd-{ID}.scope",
        f"0::/../../{POD}/cri-containerd-{ID}.scope",
        f"0::/kubepods/burstable/{UID}/{ID}",
        f"0::/kubepods/burstable/{UID}/{ID}/jobs/one",
        f"0::/system.slice/{POD}:cri-containerd:{ID}",
        f"0::/{POD}/crio-{ID}.scope",
        f"12:pids:/user.slice\n4:memory:/kubepods/burstable/{UID}/{ID}\n1:name=systemd:/init.scope",
        f"9:devices:/kubepods.slice/{POD}/cri-containerd-{ID}.scope",
    ],
    ids=[
        "systemd",
        "systemd, seen from another cgroup namespace",
        "cgroupfs",
        "groups of the container's own",
        "systemd's names by cgroupfs",
        "CRI-O",
        "version 1, cgroupfs",
        "version 1, systemd",
    ],
)
def test_the_container_of_a_cgroup_is_found(cgroup: str) -> None:
    assert container_of(cgroup, {ID, OTHER}) == ID


@pytest.mark.parametrize("cgroup", ["", "0::/\n", f"0::/system.slice/{POD}", f"0::/x/{ID}x", "::"])
def test_other_cgroups_belong_to_no_container(cgroup: str) -> None:
    assert container_of(cgroup, {ID}) is None


def test_an_id_may_have_dashes() -> None:
    assert container_of("0::/kubepods/pod1/my-container-1", {"my-container-1"}) == "my-container-1"
