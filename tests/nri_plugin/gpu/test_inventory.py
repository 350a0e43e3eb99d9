"""The GPU inventory, from the answers of NVML's process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from nri_plugin.gpu.inventory import Inventory, pace_s
from nri_plugin.gpu.record import FILE, Record
from tests.nri_plugin.gpu.inventory_scene import GPU_1, ONE, TWO, Answers
from tests.support import Clock, until_async


def logging_child(log: Path) -> tuple[str, ...]:
    """One that notes its pid at each query."""
    program = (
        "import json, os, sys\n"
        "for line in sys.stdin:\n"
        "    number = int(line.split()[0])\n"
        f"    open({str(log)!r}, 'a').write(f'{{os.getpid()}} ')\n"
        "    print(json.dumps({'request': number, 'count': 0, 'links': []}), flush=True)\n"
    )
    return (sys.executable, "-c", program)


def counted(log: Path, clock: Clock) -> Inventory:
    command = logging_child(log)
    return Inventory(os.environ, deadline_s=60.0, min_interval_s=5.0, now=clock, command=command)


async def test_the_gpus_are_kept(tmp_path: Path) -> None:
    gpus = Answers(tmp_path, ONE, driver="580.1").inventory()
    assert not gpus.gpus
    assert gpus.problem is not None
    await gpus.refresh()
    assert ([*gpus.gpus], gpus.driver) == ([GPU_1], "580.1")
    assert not gpus.problem
    await gpus.close()


async def test_nvml_is_queried_at_most_once_in_the_interval(tmp_path: Path) -> None:
    log, clock = tmp_path / "asked", Clock()
    gpus = counted(log, clock)
    await asyncio.gather(*(gpus.refresh() for _ in range(5)))
    await gpus.refresh()
    assert len(log.read_text().split()) == 1
    clock.seconds += 5
    await gpus.refresh()
    assert len(log.read_text().split()) == 2
    for later_s, queries in ((14, 2), (1, 3)):
        clock.seconds += later_s
        gpus.query_if_older(15)
        if queries == 3:
            await gpus.refresh()
        assert len(log.read_text().split()) == queries
    await gpus.close()


@pytest.mark.parametrize(("took_s", "pause_s"), [(0.0, 5.0), (0.1, 5.0), (0.5, 10.0), (9.0, 30.0)])
def test_a_slow_driver_is_queried_less_often(took_s: float, pause_s: float) -> None:
    assert pace_s(took_s, 5.0, 30.0) == pause_s


async def test_a_querys_duration_is_recorded_also_if_it_fails(tmp_path: Path) -> None:
    """The clock makes every query take a second."""
    gpus, seconds = Answers(tmp_path, ONE).inventory(), iter(range(1000))
    gpus._now = lambda: next(seconds)
    assert gpus.took_s == 0
    await gpus.refresh()
    answered_s, gpus.nvml.child.command = gpus.took_s, ("/nowhere/python",)
    assert answered_s >= 1
    await gpus.close()
    gpus.took_s, gpus._min_interval_s = 0, 0
    await gpus.refresh()
    assert gpus.problem and gpus.took_s >= 1


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("import sys; sys.exit('first\\nNVML: Driver Not Loaded')", "NVML: Driver Not Loaded"),
        ("import os; os.abort()", "killed by signal 6"),
        ("print('no gpus today')", "unreadable answer"),
        ("print(5)", "unreadable answer"),
        ("""print('{"request": 1, "count": "many"}')""", "unreadable answer"),
    ],
)
async def test_a_failed_query_keeps_the_gpus_and_reports_the_cause(
    tmp_path: Path, script: str, problem: str
) -> None:
    clock = Clock()
    gpus = Answers(tmp_path, ONE).inventory(clock)
    await gpus.refresh()
    clock.seconds += 5
    await gpus.close()
    gpus.nvml.child.command = (sys.executable, "-c", f"input(); {script}")
    await gpus.refresh()
    assert [*gpus.gpus] == [GPU_1]
    assert problem in str(gpus.problem)
    await gpus.close()


async def test_a_lasting_problem_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    gpus = Answers(tmp_path, exit="NVML: Driver Not Loaded").inventory(clock)
    for command in (None, None, ("/nowhere/python",)):
        gpus.nvml.child.command = command or gpus.nvml.child.command
        await gpus.refresh()
        clock.seconds += 5
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert gpus.problem == "/nowhere/python: No such file or directory"


async def test_one_child_answers_all_queries_and_is_replaced_when_it_exits(
    tmp_path: Path,
) -> None:
    """NVML's child exits if the driver was replaced meanwhile."""
    log, clock = tmp_path / "pids", Clock()
    gpus = counted(log, clock)
    for _ in range(3):
        await gpus.refresh()
        clock.seconds += 5
    first, *others = log.read_text().split()
    assert others == [first, first]
    os.kill(int(first), signal.SIGKILL)
    await gpus.refresh()
    assert gpus.problem is None
    assert len(set(log.read_text().split())) == 2
    await gpus.close()


async def test_a_cancelled_caller_leaves_the_query_to_the_next(tmp_path: Path) -> None:
    gpus = Answers(tmp_path, ONE).inventory()
    impatient = asyncio.create_task(gpus.refresh())
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.wait([impatient])
    assert impatient.cancelled()
    await gpus.refresh()
    assert gpus.gpus
    await gpus.close()


async def test_without_a_driver_the_child_reports_it() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    gpus = Inventory(environment, deadline_s=60, min_interval_s=0, now=Clock())
    await gpus.refresh()
    assert gpus.problem is None or gpus.problem.startswith("NVML: ")
    await gpus.close()


async def test_gpus_are_connected_as_the_board_answers(tmp_path: Path) -> None:
    """The query of the links is about all GPUs, so it waits until each has answered."""
    clock, links = Clock(), ["nvlink-0", "nvlink-0"]
    answers = Answers(tmp_path, ONE, TWO, links=None, measured_links=links)
    gpus = answers.inventory(clock)
    await gpus.refresh()
    assert [gpu.link for gpu in gpus.seen] == links
    answers.give(ONE, TWO, links=None, measured_links=["", ""])
    gpus.nvml._running.late.add(1)  # type: ignore[union-attr]
    answers.give(ONE, {**TWO, "silent": True}, links=None, measured_links=["", ""])
    clock.seconds += 5
    await gpus.refresh()
    assert [gpu.link for gpu in gpus.seen] == links, "as last known"
    await gpus.close()


# --- health --------------------------------------------------------------------------------------


async def test_an_xid_of_the_gpu_lasts_and_one_of_a_program_does_not_count(tmp_path: Path) -> None:
    clock, xids = Clock(), [["GPU-1", 31], ["GPU-1", 79], ["GPU-1", 95]]
    answers = Answers(tmp_path, {**ONE, "xids": xids})
    gpus = answers.inventory(clock)
    for _ in range(3):
        await gpus.refresh()
        (seen,) = gpus.seen
        assert seen.problem == "the driver reported XID 79 (GPU has fallen off the bus)"
        assert [*gpus.gpus] == []
        answers.give({**ONE, "xids": [["GPU-1", 43]]})
        clock.seconds += 5
    await gpus.close()


CONDEMNS = (48, 62, 64, 74, 79, 95, 119, 120, 140, 143)


@pytest.mark.parametrize("xid", [*CONDEMNS, 13, 63, 94, 154])
async def test_an_xid_that_needs_a_reset_condemns_the_gpu(tmp_path: Path, xid: int) -> None:
    gpus = Answers(tmp_path, {**ONE, "xids": [["GPU-1", xid]]}).inventory()
    await gpus.refresh()
    assert [*gpus.gpus] == ([] if xid in CONDEMNS else [GPU_1])
    await gpus.close()


@pytest.mark.parametrize("from_head", [False, True])
async def test_an_xid_outlasts_the_agent_until_the_driver_is_loaded_again(
    tmp_path: Path, from_head: bool
) -> None:
    """The driver reports an error once, and never its end. from_head: the GPU has no thread."""
    xids = [["GPU-1", 48]]
    more = {"head_xids": xids} if from_head else {}
    answers = Answers(tmp_path, {**ONE, "xids": [] if from_head else xids}, **more)
    record = Record(tmp_path, "boot 1")
    record.begin()
    gpus = answers.inventory(record=record)
    await gpus.refresh()
    await gpus.close()
    await until_async(lambda: "GPU-1" in (tmp_path / FILE).read_text())
    answers.give(ONE)
    for load, healthy in (("boot 1", False), ("boot 2", True)):
        gpus = answers.inventory(record=Record(tmp_path, load))
        await gpus.refresh()
        assert bool(gpus.gpus) is healthy
        await gpus.close()


@pytest.mark.parametrize(
    ("action", "problem"),
    [(1, "reset the GPU"), (2, "reboot the node"), (4, "drain and reset"), (99, "action 99")],
)
async def test_a_gpu_is_unhealthy_while_the_driver_requests_an_action(
    tmp_path: Path, action: int, problem: str
) -> None:
    """The driver's field outranks all XID errors where it exists."""
    clock = Clock()
    answers = Answers(tmp_path, {**ONE, "recovery": action, "xids": [["GPU-1", 48]]})
    gpus = answers.inventory(clock)
    await gpus.refresh()
    assert problem in gpus.seen[0].problem
    answers.give({**ONE, "recovery": 0})
    clock.seconds += 5
    await gpus.refresh()
    assert [*gpus.gpus] == [GPU_1]
    await gpus.close()


# --- GPUs that do not answer ---------------------------------------------------------------------
