"""The GPU inventory while GPUs, or all of NVML, answer late or not at all."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from nri_plugin.gpu.inventory import Inventory
from nri_plugin.gpu.nvml_queries import PROCESSES
from nri_plugin.gpu.record import FILE, Record
from tests.nri_plugin import fake_nvml
from tests.nri_plugin.gpu.deadlines import Deadlines
from tests.nri_plugin.gpu.inventory_scene import GPU_1, GPU_2, ONE, TWO, Answers
from tests.support import Clock, until_async


async def scene(path: Path) -> tuple[Answers, Clock, Inventory, Deadlines]:
    """Two GPUs that have answered."""
    answers, clock = Answers(path, ONE, TWO), Clock()
    gpus = answers.inventory(clock)
    await gpus.refresh()
    return answers, clock, gpus, Deadlines(gpus.nvml)


async def heard(gpus: Inventory) -> None:
    """Return when no answer is late any more."""
    await gpus.refresh()
    await until_async(lambda: not gpus.nvml._running.late)  # type: ignore[union-attr]


async def test_a_gpu_that_does_not_answer_is_unhealthy_until_it_does(tmp_path: Path) -> None:
    answers, clock, gpus, deadlines = await scene(tmp_path)
    answers.give(ONE, {**TWO, "silent": True})
    clock.seconds += 5
    looking = asyncio.create_task(gpus.refresh())
    await until_async(lambda: deadlines.heard(0))
    assert not looking.done()
    deadlines.expire()
    await looking
    assert ([*gpus.gpus], gpus.problem) == ([GPU_1], None)
    assert gpus.seen[1].problem == "NVML did not answer for it in 60 s"
    clock.seconds += 5
    await gpus.refresh()  # waits for this GPU no more
    assert [*gpus.gpus] == [GPU_1]
    answers.give(ONE, TWO)
    clock.seconds += 5
    await heard(gpus)
    clock.seconds += 5
    await gpus.refresh()
    assert [*gpus.gpus] == [GPU_1, GPU_2]
    await gpus.close()


async def test_measurements_do_not_wait_for_a_gpu_that_was_slow(tmp_path: Path) -> None:
    """The GPU stays out until it has answered a query of its health in time: its next answer may be
    as slow."""
    answers, clock, gpus, deadlines = await scene(tmp_path)
    answers.give(ONE, {**TWO, "silent": True})
    asked = asyncio.create_task(gpus.nvml.ask(PROCESSES))
    await until_async(lambda: deadlines.heard(0))
    deadlines.expire()
    assert (await asked).lines.keys() == {0}
    running = gpus.nvml._running
    assert running is not None
    running.late.clear()  # it has answered, later
    assert (await gpus.nvml.ask(PROCESSES)).lines.keys() == {0}
    assert gpus.nvml.silent and not running.late
    answers.give(ONE, TWO)
    clock.seconds += 5
    await gpus.refresh()
    assert not gpus.nvml.silent
    assert (await gpus.nvml.ask(PROCESSES)).lines.keys() == {0, 1}
    await gpus.close()


async def test_a_slow_first_answer_is_waited_for(tmp_path: Path) -> None:
    """The driver attaches each GPU anew where persistence mode is off. The other GPUs serve at
    once."""
    clock = Clock()
    answers = Answers(tmp_path, ONE, {**TWO, "silent": True})
    gpus = answers.inventory(clock)
    deadlines = Deadlines(gpus.nvml)
    looking = asyncio.create_task(gpus.refresh())
    await until_async(lambda: deadlines.heard(0))
    clock.seconds += 60
    deadlines.expire()
    await looking
    assert ([*gpus.gpus], gpus.problem, gpus.nvml.silent) == ([GPU_1], None, True)
    assert gpus.unnamed == ["GPU 1: NVML has not answered for it yet (60 s)"]
    answers.give(ONE, TWO)
    clock.seconds += 5
    await heard(gpus)
    clock.seconds += 5
    await gpus.refresh()
    assert ([*gpus.gpus], gpus.nvml.silent, gpus.unnamed) == ([GPU_1, GPU_2], False, [])
    await gpus.close()


async def test_a_driver_that_starts_slowly_is_not_started_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The same process answers after a minute; the log shows the progress. After FIRST_S it counts
    as hung, and is replaced."""
    clock, go = Clock(), tmp_path / "go"
    script = (
        "import os, runpy, sys, time\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.05)\n"
        f"runpy.run_path({fake_nvml.PROGRAM[1]!r}, run_name='__main__')"
    )
    answers = Answers(tmp_path, ONE)
    gpus = answers.inventory(clock)
    gpus.nvml.child.command = (sys.executable, "-c", script, str(tmp_path / "answers"))
    deadlines = Deadlines(gpus.nvml)

    async def late_s(seconds: float) -> None:
        looking = asyncio.create_task(gpus.refresh())
        await until_async(lambda: gpus.nvml._running and gpus.nvml._running.requests)
        clock.seconds += seconds
        deadlines.expire()
        await looking

    await late_s(12)
    running = gpus.nvml._running
    assert "NVML has not answered for 12 s" in str(gpus.problem)
    await late_s(48)
    assert "NVML has not answered for 60 s" in str(gpus.problem)
    assert gpus.nvml._running is running
    go.touch()
    clock.seconds += 5
    await gpus.refresh()
    assert ([*gpus.gpus], gpus.problem) == ([GPU_1], None)
    assert sum("has not answered" in text for text in caplog.messages) == 2
    await gpus.close()
    go.unlink()
    clock.seconds += 5
    await late_s(121)
    assert (gpus.problem, gpus.nvml._running) == ("NVML did not answer in 60 s", None)
    await gpus.close()


async def test_a_process_in_which_no_gpu_answers_is_replaced(tmp_path: Path) -> None:
    """NVML still lists the GPUs. It is waited for as long as for its first answers."""
    answers, clock, gpus, deadlines = await scene(tmp_path)
    answers.give({**ONE, "silent": True}, {**TWO, "silent": True})
    running = gpus.nvml._running
    clock.seconds += 119
    looking = asyncio.create_task(gpus.refresh())
    await until_async(deadlines.listed)
    deadlines.expire()
    await looking
    assert gpus.nvml._running is running
    clock.seconds += 5
    await gpus.refresh()
    assert (gpus.problem, gpus.nvml._running) == ("NVML did not answer in 60 s", None)
    await gpus.close()


async def test_after_a_restart_the_last_known_gpus_serve(tmp_path: Path) -> None:
    """They serve while NVML does not answer. A GPU that does not answer serves up to FIRST_S."""
    answers = Answers(tmp_path, ONE, {**TWO, "problem": "MIG mode is enabled"})
    record = Record(tmp_path, "boot")
    record.begin()
    gpus = answers.inventory(record=record)
    await gpus.refresh()
    seen = gpus.seen
    await gpus.close()
    await until_async(lambda: "GPU-2" in (tmp_path / FILE).read_text())
    answers.give(hang=True)
    clock = Clock()
    again = answers.inventory(clock, Record(tmp_path, "boot"))
    assert (again.seen, [*again.gpus]) == (seen, [GPU_1])
    deadlines = Deadlines(again.nvml)
    looking = asyncio.create_task(again.refresh())
    await until_async(lambda: again.nvml._running and again.nvml._running.requests)
    deadlines.expire()
    await looking
    assert "has not answered" in str(again.problem)
    assert (again.seen, [*again.gpus]) == (seen, [GPU_1])
    await again.close()
    answers.give({**ONE, "silent": True}, TWO)
    clock.seconds += 5
    looking = asyncio.create_task(again.refresh())
    await until_async(lambda: deadlines.heard(1))
    deadlines.expire()
    await looking
    assert [*again.gpus] == [GPU_1, GPU_2]
    clock.seconds += 120
    await again.refresh()
    assert [*again.gpus] == [GPU_2]
    assert again.seen[0].problem == "NVML did not answer for it in 60 s"
    await again.close()


async def test_a_child_that_hangs_is_killed_and_not_followed_while_it_lingers(
    tmp_path: Path,
) -> None:
    clock = Clock()
    answers = Answers(tmp_path, hang=True)
    gpus = answers.inventory(clock)
    deadlines = Deadlines(gpus.nvml)
    looking = asyncio.create_task(gpus.refresh())
    await until_async(lambda: gpus.nvml._running and gpus.nvml._running.requests)
    clock.seconds += 120
    deadlines.expire()
    await looking
    assert gpus.problem == "NVML did not answer in 60 s"
    lingering = gpus.nvml.child.lingering
    assert lingering is not None
    assert await lingering.wait() == -signal.SIGKILL
    # To the agent, a child that no signal reaches is the same as this:
    sleeper = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=-1)
    gpus.nvml.child.lingering = sleeper
    clock.seconds += 5
    await gpus.refresh()
    assert "still hangs in the driver" in str(gpus.problem)
    sleeper.kill()
    await sleeper.wait()
    clock.seconds += 5
    answers.give(ONE)
    await gpus.refresh()
    assert gpus.gpus
    await gpus.close()
