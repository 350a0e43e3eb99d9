"""The GPU inventory, from NVML's process, and the record that the agent keeps of it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from nri_plugin.gpu.inventory import pace_s
from nri_plugin.gpu.record import FILE, Record, load_id
from nri_plugin.policy.model import Gpu
from tests.nri_plugin.gpu.inventory_scene import GPU_1, ONE, SILENT, TWO, Scene, scene
from tests.support import until_async


@pytest.fixture
def s(tmp_path: Path) -> AbstractAsyncContextManager[Scene]:
    return scene(tmp_path)


async def test_one_child_answers_one_query_in_the_interval(s: Scene) -> None:
    """A child that exits, for example because the driver was replaced, is followed by another."""
    file = s.path / "pids"
    program = (
        "import json, os, sys\n"
        "for line in sys.stdin:\n"
        "    number = int(line.split()[0])\n"
        f"    open({str(file)!r}, 'a').write(f'{{os.getpid()}} ')\n"
        "    print(json.dumps({'request': number, 'count': 0, 'links': []}), flush=True)\n"
    )
    s.nvml.child.command = (sys.executable, "-c", program)

    def pids() -> list[str]:
        return file.read_text().split()

    await asyncio.gather(*(s.inventory.refresh() for _ in range(5)))
    await s.inventory.refresh()
    assert len(pids()) == 1
    await s.ask()
    for later_s, queries in ((0, 2), (14, 2), (1, 3)):
        s.clock.seconds += later_s
        s.inventory.query_if_older(15)
        if queries == 3:
            await s.inventory.refresh()
        assert len(pids()) == queries
    (first,) = set(pids())
    os.kill(int(first), signal.SIGKILL)
    await s.ask()
    assert s.inventory.problem is None
    assert len(set(pids())) == 2


@pytest.mark.parametrize(("took_s", "pause_s"), [(0.0, 5.0), (0.1, 5.0), (0.5, 10.0), (9.0, 30.0)])
def test_a_slow_driver_is_queried_less_often(took_s: float, pause_s: float) -> None:
    assert pace_s(took_s, 5.0, 30.0) == pause_s


async def test_a_querys_duration_is_recorded_also_if_it_fails(s: Scene) -> None:
    """The test's clock makes every query take a second."""
    s.give(ONE)
    gpus, seconds = s.inventory, iter(range(1000))
    gpus._now = lambda: next(seconds)
    assert gpus.took_s == 0
    await gpus.refresh()
    answered_s, s.nvml.child.command = gpus.took_s, ("/nowhere/python",)
    assert answered_s >= 1
    await gpus.close()
    gpus.took_s, gpus._min_interval_s = 0, 0
    await gpus.refresh()
    assert gpus.problem and gpus.took_s >= 1


async def test_a_change_is_logged_once(s: Scene, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    for gpus in ((ONE,), (ONE, {"error": "lost"}), ({**ONE, "problem": "MIG mode"},)):
        for _ in range(3):
            await s.ask(*gpus)
    changed, unhealthy = "GPU inventory changed gpus", "GPU unhealthy "
    expected = [changed, changed, f"{unhealthy}problem", changed, f"{unhealthy}uuid"]
    assert [text.partition("=")[0] for text in caplog.messages] == expected


SCRIPTS = {
    "import sys; sys.exit('first\\nNVML: Not Loaded')": "NVML: Not Loaded",
    "import os; os.write(2, b'bad'); os.abort()": "killed by signal 6: bad",
    "": "exited with status 0 and no message",
    "print('no gpus today')": "unreadable answer",
    "print(5)": "unreadable answer",
    """print('{"request": 1, "count": "many"}')""": "unreadable answer",
}


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        *(((sys.executable, "-c", f"input(); {script}"), why) for script, why in SCRIPTS.items()),
        (("/nowhere/python",), "/nowhere/python: No such file or directory"),
    ],
)
async def test_a_failed_query_keeps_the_gpus_and_its_cause_is_logged_once(
    s: Scene, command: Sequence[str], problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert not s.inventory.gpus and s.inventory.problem is not None
    await s.ask(ONE, driver="580.1")
    assert s.inventory.driver == "580.1" and not s.inventory.problem
    await s.inventory.close()
    s.nvml.child.command = command
    for _ in range(2):
        assert await s.ask() == [GPU_1]
        assert problem in str(s.inventory.problem)
        if s.nvml.child.lingering is not None:
            await s.nvml.child.lingering.wait()
    assert [each.levelname for each in caplog.records if problem in each.getMessage()] == ["ERROR"]


async def test_a_cancelled_caller_leaves_the_query_to_the_next(s: Scene) -> None:
    s.give(ONE)
    impatient = asyncio.create_task(s.inventory.refresh())
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.wait([impatient])
    assert impatient.cancelled()
    await s.inventory.refresh()
    assert s.inventory.gpus


async def test_gpus_are_connected_as_the_board_answers(s: Scene) -> None:
    """One query reads the links between all GPUs. It is not made while a GPU's answer is late."""
    links = ["nvlink-0", "nvlink-0"]
    await s.ask(ONE, TWO, links=None, measured_links=links)
    assert [gpu.link for gpu in s.inventory.seen] == links
    s.nvml._running.late.add(1)  # type: ignore[union-attr]
    await s.ask(ONE, SILENT, links=None, measured_links=["", ""])
    assert [gpu.link for gpu in s.inventory.seen] == links, "as last known"


CONDEMNS = (48, 62, 64, 74, 79, 95, 119, 120, 140, 143)


@pytest.mark.parametrize("xid", [*CONDEMNS, 13, 63, 94, 154])
async def test_an_xid_that_needs_a_reset_condemns_the_gpu(s: Scene, xid: int) -> None:
    assert await s.ask({**ONE, "xids": [["GPU-1", xid]]}) == ([] if xid in CONDEMNS else [GPU_1])


@pytest.mark.parametrize("from_head", [False, True])
async def test_an_xid_counts_until_the_driver_is_loaded_again(
    tmp_path: Path, from_head: bool
) -> None:
    """The driver reports an error once, and never its end. An error that a program caused is
    ignored. from_head: the first line of the answer has the error, not the GPU's line. NVML's
    process does so for a GPU that no thread queries."""
    xids = [["GPU-1", 31], ["GPU-1", 79], ["GPU-1", 95]]
    record = Record(tmp_path, "boot 1")
    record.begin()
    answers = ({**ONE, "xids": []}, xids) if from_head else ({**ONE, "xids": xids}, [])
    async with scene(tmp_path, answers[0], record=record, head_xids=answers[1]) as s:
        for _ in range(3):
            assert await s.ask() == []
            (seen,) = s.inventory.seen
            assert seen.problem == "the driver reported XID 79 (GPU has fallen off the bus)"
            s.give({**ONE, "xids": [["GPU-1", 43], ["GPU-1", 95]]})
    await _written(tmp_path, "GPU-1")
    for load, healthy in (("boot 1", False), ("boot 2", True)):
        async with scene(tmp_path, ONE, record=Record(tmp_path, load)) as s:
            assert bool(await s.ask()) is healthy


ACTIONS = "reset the GPU", "reboot the node", "P2P", "drain and reset", "IMEX", "bus", "the system"


@pytest.mark.parametrize(("action", "problem"), [*enumerate(ACTIONS, 1), (99, "action 99")])
async def test_an_action_of_the_driver_is_a_problem(s: Scene, action: int, problem: str) -> None:
    """A recovery action outranks all XID errors. Older drivers report no recovery actions."""
    await s.ask({**ONE, "recovery": action, "xids": [["GPU-1", 48]]})
    assert problem in s.inventory.seen[0].problem
    assert await s.ask({**ONE, "recovery": 0}) == [GPU_1]


GPUS = (Gpu("GPU-1", 0, 5, index=0, problem="MIG mode is enabled"), Gpu("GPU-2", 1, 6, index=1))


async def _written(path: Path, text: str) -> None:
    await until_async(lambda: (path / FILE).exists() and text in (path / FILE).read_text())


def kept(record: Record) -> tuple[object, ...]:
    return record.gpus, record.xids, record.contexts


async def test_what_is_kept_outlasts_the_agent(tmp_path: Path) -> None:
    """A second agent reads the record at its start, and writes it after the first one's end."""
    first, second = Record(tmp_path, "boot 1"), Record(tmp_path, "boot 1")
    first.keep(gpus=GPUS, xids={"GPU-1": 79}, contexts={"580 A": 7})
    assert os.listdir(tmp_path) == [], "another agent may serve the node"
    first.begin()
    await _written(tmp_path, "580 A")
    assert kept(Record(tmp_path, "boot 1")) == (GPUS, {"GPU-1": 79}, {"580 A": 7})
    assert kept(Record(tmp_path, "boot 2")) == ((), {}, {"580 A": 7})
    second.keep(gpus=GPUS[1:], xids={"GPU-2": 48})
    second.begin()
    assert kept(second) == (GPUS[1:], {"GPU-2": 48, "GPU-1": 79}, {"580 A": 7})


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "5", "{}"),
        '{"load": "b", "gpus": [{"uuid": 1}], "xids": {}, "contexts": {}}',
        '{"gpus": [], "xids": {}, "contexts": {}}',
    ],
)
def test_a_file_that_cannot_be_read_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert kept(Record(tmp_path, "b")) == ((), {}, {})


def test_the_load_is_named_by_boot() -> None:
    assert load_id().split()[0] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
