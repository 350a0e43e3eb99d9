"""What the agent measures of containers: the memory that the driver holds beyond what they are
charged, and at each sample their compute: the library's counts, NVML's utilization, and the pause
that follows.

In the last test NVML's child is the real one, over a simulated driver, and the process is a real
program under the library.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuslice.contract import names, region_file
from nri_plugin.gpu.measuring import container_of
from nri_plugin.gpu.nvml_process import COMMAND
from tests.nri_plugin import fake_nvml
from tests.nri_plugin.gpu.inventory_scene import Deadlines
from tests.nri_plugin.gpu.measured_node import GPU, LABELS, THROTTLED, Node, during, sample
from tests.shim.conftest import CONTEXT_BYTES, GPUS, MIB, Host, gpu_host, library
from tests.shim.exact import CODE
from tests.support import until_async

__all__ = ["gpu_host", "library"]

BAD_ANSWER = "import sys\nfor line in sys.stdin: print({!r}, flush=True)"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_container_s_processes_are_summed_and_the_rest_is_written(node: Node) -> None:
    node.add("c1", "key-1", 500)
    node.add("c2", "key-2", 0)
    node.add("c3", "key-2", 0)
    node.process(11, "c1")
    node.process(12, "c1")
    node.process(31, "c3")
    node.process(21, "c2")
    node.process(99, "of another")
    node.nvml({11: 400, 12: 300, 21: 30, 31: 20, 99: 10_000, 100: 7})
    measuring = node.measuring()
    sample(measuring, 2)
    assert (node.overhead("key-1"), node.overhead("key-2")) == (0, 0)
    sample(measuring, 1)
    assert (node.overhead("key-1"), node.overhead("key-2")) == (200, 50)
    assert node.metric("gpuslice_overhead_bytes", uuid=GPU) == 250
    assert node.metric("gpuslice_containers_not_measured") == 0


def test_processes_that_nvml_does_not_list_have_no_figure(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """MPS hides processes from NVML. Their exit is derived from the listing: they were in it
    before."""
    node.one()
    first = node.measuring()
    sample(first)
    node.nvml({11: None})
    sample(first)
    assert node.metric("gpuslice_containers_not_measured") == 1
    caplog.clear()
    again = node.measuring()
    for is_known in (False, True):
        node.nvml({} if is_known else None)
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


def test_a_restarted_agent_leaves_the_last_figure_until_it_has_its_own(node: Node) -> None:
    node.one()
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
    node.one()
    measuring = node.measuring()
    sample(measuring, 2)
    move = f"cd {node.root}; mv key-1 old; cp -r old key-1; exec {' '.join(node.command)}"
    measuring.nvml.child.command = ("sh", "-c", move)
    sample(measuring, 1)
    assert (node.overhead("old"), node.overhead("key-1")) == (200, 0)


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("import sys; sys.stderr.write('NVML: Driver Not Loaded\\n'); sys.exit(1)", "Not Loaded"),
        (BAD_ANSWER.format("never mind"), "unreadable answer"),
    ],
    ids=["no driver", "not JSON"],
)
def test_nvml_that_does_not_answer_is_not_queried_for_a_while(
    node: Node, script: str, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    node.one()
    node.command = (sys.executable, "-c", script)
    measuring = node.measuring()

    async def samples() -> int:
        for _ in range(3):
            await measuring.sample()
        return node.overhead("key-1")

    async def work() -> None:
        node.seconds += 10.0
        assert await samples() == 0
        assert node.metric("gpuslice_containers_not_measured") == 1
        assert node.metric("gpuslice_sample_age_seconds") == 10, "none was taken"
        said = [text for text in caplog.messages if "not measured" in text]
        assert [problem in text for text in said] == [True], "once"
        child = measuring.nvml.child
        if child.lingering is not None:
            await child.lingering.wait()
        child.command = (*fake_nvml.PROGRAM, str(node.root / "usage"))
        node.nvml({11: 700})
        assert await samples() == 0, "asked again too soon"
        node.seconds += 10.0
        assert node.metric("gpuslice_sample_age_seconds") == 20
        assert await samples() == 200
        assert node.metric("gpuslice_sample_age_seconds") == 0
        assert any("measured again" in text for text in caplog.messages)

    during(measuring, work)


def test_a_gpu_that_does_not_answer_leaves_the_others_measured(node: Node) -> None:
    node.one()
    answers = {
        "gpus": [{"uuid": node.uuid}, {"uuid": "GPU-9", "silent": True}],
        "memory": {node.uuid: {11: 700}},
    }
    (node.root / "usage").write_text(json.dumps(answers))
    measuring = node.measuring()
    deadlines = Deadlines(measuring.nvml)

    async def work() -> None:
        first = asyncio.create_task(measuring.sample())
        await until_async(lambda: deadlines.heard(0))
        deadlines.expire()
        await first
        for _ in range(2):  # these wait for the GPU no more
            await measuring.sample()
        assert node.overhead("key-1") == 200

    during(measuring, work)


# --- compute


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


def test_a_truncated_region_has_no_use_of_compute(node: Node) -> None:
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


# --- a process's container


ID = "4f0d" * 16
OTHER = "5e1c" * 16
DASHED = "my-container-1"
POD = "kubepods-burstable-pod3b6c9d1e_0f2a_4c55_9d7e_1a2b3c4d5e6f.slice"
UID = "pod3b6c9d1e-0f2a-4c55-9d7e-1a2b3c4d5e6f"


CGROUPS = {
    "systemd": f"0::/kubepods.slice/kubepods-burstable.slice/{POD}/cri-containerd-{ID}.scope",
    "systemd, seen from another cgroup namespace": f"0::/../../{POD}/cri-containerd-{ID}.scope",
    "cgroupfs": f"0::/kubepods/burstable/{UID}/{ID}",
    "cgroupfs, an id with dashes": f"0::/kubepods/burstable/{UID}/{DASHED}",
    "groups of the container's own": f"0::/kubepods/burstable/{UID}/{ID}/jobs/one",
    "systemd's names by cgroupfs": f"0::/system.slice/{POD}:cri-containerd:{ID}",
    "CRI-O": f"0::/{POD}/crio-{ID}.scope",
    "version 1, cgroupfs": (
        f"12:pids:/user.slice\n4:memory:/kubepods/burstable/{UID}/{ID}\n1:name=systemd:/init.scope"
    ),
    "version 1, systemd": f"9:devices:/kubepods.slice/{POD}/cri-containerd-{ID}.scope",
}


@pytest.mark.parametrize("cgroup", CGROUPS.values(), ids=CGROUPS)
def test_the_container_of_a_cgroup_is_found(cgroup: str) -> None:
    assert container_of(cgroup, {ID, OTHER, DASHED}) == (DASHED if DASHED in cgroup else ID)


@pytest.mark.parametrize("cgroup", ["", "0::/\n", f"0::/system.slice/{POD}", f"0::/x/{ID}x", "::"])
def test_other_cgroups_belong_to_no_container(cgroup: str) -> None:
    assert container_of(cgroup, {ID}) is None


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
