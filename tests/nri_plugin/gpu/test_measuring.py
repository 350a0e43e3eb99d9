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
import sys
import time
from contextlib import aclosing
from pathlib import Path

import pytest

from gpuslice.contract import names
from gpuslice.contract.region_file import Compute, Geometry
from nri_plugin.gpu.measuring import container_of
from nri_plugin.gpu.nvml_process import COMMAND
from tests.nri_plugin.gpu.inventory_scene import Deadlines
from tests.nri_plugin.gpu.measured_node import GPU, LABELS, THROTTLED, Node
from tests.shim.conftest import CONTEXT_BYTES, GPUS, MIB, Host, gpu_host, library
from tests.shim.exact import CODE

__all__ = ["gpu_host", "library"]


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


async def test_processes_that_nvml_does_not_list_have_no_figure(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """MPS hides processes from NVML. Their exit is derived from the listing: they were in it
    before."""
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
    """The container is removed, and another created, during the NVML query."""
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
    assert any("measured again" in text for text in caplog.messages)


async def test_a_gpu_that_does_not_answer_leaves_the_others_measured(node: Node) -> None:
    node.one()
    gpus = [{"uuid": GPU}, {"uuid": "GPU-9", "silent": True}]
    node.answers.write_text(json.dumps({"gpus": gpus, "memory": {GPU: {11: 700}}}))
    await Deadlines(node.agent.nvml).after(node.sample(1), 0)
    await node.sample(2)  # these wait for the GPU no more
    assert node.overhead() == 200


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

    assert await pauses_s({}, {}) == [1, 3]
    assert await pauses_s({11: 5}, {}) == [1, 3]
    node.works("c1", Compute(busy_ns=1))
    assert await pauses_s({}, {}) == [1, 3]
    node.add("c2")
    assert await pauses_s({}) == [1]


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
    assert await sampled({21: 60}) == 0
    assert [await sampled(None), await sampled(None)] == [None, None]
    assert await sampled({11: 30}) == pytest.approx(0.3)
    node.holds.clear()
    assert await sampled({11: 30}) is None
    assert sum("NVML has no utilization" in text for text in caplog.messages) == 1


ID, OTHER, DASHED = "4f0d" * 16, "5e1c" * 16, "my-container-1"
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
    node = Node(tmp_path, GPUS[0][0], COMMAND, gpu_host.environment(None, preload=False))
    node.add("c1")

    async def measure() -> None:
        async with aclosing(node):
            await node.sample()

    work = "must(d.cuMemAlloc(100 * MIB)); run(entry(load(80)))\n"
    with gpu_host.serving(CODE + work, tmp_path / "c1") as program:
        node.process("c1", program.pid)
        asyncio.run(measure())
    # This grant has no context size.
    assert node.overhead() == CONTEXT_BYTES + 80 * MIB
