"""The overhead of containers: the memory that the driver holds beyond what they are charged.

In the last test NVML's child is the real one, over a simulated driver, and the process is a real
program under the library.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpuslice.contract import names
from nri_plugin.gpu.nvml_process import COMMAND
from tests.nri_plugin import fake_nvml
from tests.nri_plugin.gpu.deadlines import Deadlines
from tests.nri_plugin.gpu.measured_node import GPU, Node, during, sample
from tests.shim.conftest import CONTEXT_BYTES, GPUS, MIB, Host, gpu_host, library
from tests.shim.exact import CODE
from tests.support import until_async

__all__ = ["gpu_host", "library"]

BAD_ANSWER = "import sys\nfor line in sys.stdin: print({!r}, flush=True)"


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
    node.add("c1", "key-1", 500)
    node.process(11, "c1")
    node.nvml({11: 700})
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
    move = f"cd {node.root}; mv key-1 old; cp -r old key-1; exec {' '.join(node.command)}"
    measuring._nvml.child.command = ("sh", "-c", move)
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
    node.add("c1", "key-1", 500)
    node.process(11, "c1")
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
        child = measuring._nvml.child
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
    node.add("c1", "key-1", 500)
    node.process(11, "c1")
    answers = {
        "gpus": [{"uuid": node.uuid}, {"uuid": "GPU-9", "silent": True}],
        "memory": {node.uuid: {11: 700}},
    }
    (node.root / "usage").write_text(json.dumps(answers))
    measuring = node.measuring()
    deadlines = Deadlines(measuring._nvml)

    async def work() -> None:
        first = asyncio.create_task(measuring.sample())
        await until_async(lambda: deadlines.heard(0))
        deadlines.expire()
        await first
        for _ in range(2):  # these wait for the GPU no more
            await measuring.sample()
        assert node.overhead("key-1") == 200

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
