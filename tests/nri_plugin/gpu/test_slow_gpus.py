"""The GPU inventory while GPUs, or all of NVML, answer late or never.

The last tests have NVML's real process, over simulated GPUs.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from nri_plugin.gpu.inventory import Inventory
from nri_plugin.gpu.nvml_queries import PROCESSES
from nri_plugin.gpu.record import FILE, Record
from tests.nri_plugin import fake_nvml
from tests.nri_plugin.gpu import inventory_scene
from tests.nri_plugin.gpu.inventory_scene import GPU_1, GPU_2, ONE, SILENT, TWO, Scene, scene
from tests.simgpu.host import GIB, Host
from tests.support import Clock, until_async


@pytest.fixture
def s(tmp_path: Path) -> AbstractAsyncContextManager[Scene]:
    return scene(tmp_path)


async def test_a_gpu_that_does_not_answer_is_unhealthy_until_it_does(s: Scene) -> None:
    await s.ask(ONE, TWO)
    s.give(ONE, SILENT)
    assert await s.late(0) == [GPU_1]
    assert s.inventory.problem is None
    assert s.inventory.seen[1].problem == "NVML did not answer for it in 60 s"
    assert s.inventory.with_problems({"GPU-2": "no CDI spec"}) == [*s.inventory.seen]
    assert await s.ask() == [GPU_1]  # this query does not wait for the late GPU
    s.give(ONE, TWO)
    await s.caught_up()
    assert await s.ask() == [GPU_1, GPU_2]


async def test_measurements_do_not_wait_for_a_gpu_that_was_slow(s: Scene) -> None:
    """Measurements leave out a slow GPU until it has answered a query of its health in time."""
    await s.ask(ONE, TWO)
    s.give(ONE, SILENT)
    answers = await s.deadlines.after(s.nvml.ask(PROCESSES), 0)
    assert answers.lines.keys() == {0}
    running = s.nvml._running
    assert running is not None
    running.late.clear()  # the late answer has arrived
    assert (await s.nvml.ask(PROCESSES)).lines.keys() == {0}
    assert s.nvml.silent and not running.late
    await s.ask(ONE, TWO)
    assert not s.nvml.silent
    assert (await s.nvml.ask(PROCESSES)).lines.keys() == {0, 1}


async def test_a_slow_first_answer_is_waited_for(s: Scene) -> None:
    """The driver attaches each GPU anew for a query where persistence mode is off."""
    s.give(ONE, SILENT)
    assert await s.late(0, after_s=60) == [GPU_1]
    assert (s.inventory.problem, s.nvml.silent) == (None, True)
    assert s.inventory.unnamed == ["GPU 1: NVML has not answered for it yet (60 s)"]
    s.give(ONE, TWO)
    await s.caught_up()
    assert await s.ask() == [GPU_1, GPU_2]
    assert (s.nvml.silent, s.inventory.unnamed) == (False, [])


async def test_a_driver_that_starts_slowly_is_not_started_again(
    tmp_path: Path, s: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """The same process answers after a minute. Until then the log shows the progress."""
    go = tmp_path / "go"
    script = (
        "import os, runpy, sys, time\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.05)\n"
        f"runpy.run_path({fake_nvml.PROGRAM[1]!r}, run_name='__main__')"
    )
    s.give(ONE)
    s.nvml.child.command = (sys.executable, "-c", script, str(tmp_path / "answers"))
    await s.late(after_s=12)
    running = s.nvml._running
    assert "NVML has not answered for 12 s" in str(s.inventory.problem)
    await s.late(after_s=43)
    assert "NVML has not answered for 60 s" in str(s.inventory.problem)
    assert s.nvml._running is running
    go.touch()
    assert await s.ask() == [GPU_1]
    assert s.inventory.problem is None
    assert sum("has not answered" in text for text in caplog.messages) == 2


async def test_a_process_in_which_no_gpu_answers_is_replaced(s: Scene) -> None:
    """NVML still lists the GPUs. The agent replaces the process after FIRST_S without answers."""
    await s.ask(ONE, TWO)
    s.give({**ONE, "silent": True}, SILENT)
    running = s.nvml._running
    s.clock.seconds += 115
    await s.deadlines.after(s.inventory.refresh(), listed=True)
    assert s.nvml._running is running
    await s.ask()
    assert s.inventory.problem == "NVML did not answer in 60 s"
    assert s.nvml._running is None


async def test_after_a_restart_the_last_known_gpus_serve(tmp_path: Path) -> None:
    """The recorded GPUs serve while NVML does not answer. If NVML answers for other GPUs only, a
    recorded GPU serves for FIRST_S."""
    record = Record(tmp_path, "boot")
    record.begin()
    async with scene(tmp_path, ONE, {**TWO, "problem": "MIG mode"}, record=record) as s:
        await s.ask()
        seen = s.inventory.seen
    await until_async(lambda: "GPU-2" in (tmp_path / FILE).read_text())
    async with scene(tmp_path, hang=True, record=Record(tmp_path, "boot")) as s:
        gpus = s.inventory
        assert (gpus.seen, [*gpus.gpus]) == (seen, [GPU_1])
        assert await s.late() == [GPU_1]
        assert "has not answered" in str(gpus.problem) and gpus.seen == seen
        await gpus.close()
        s.give({**ONE, "silent": True}, TWO)
        assert await s.late(1) == [GPU_1, GPU_2]
        s.clock.seconds += 115
        assert await s.ask() == [GPU_2]
        assert gpus.seen[0].problem == "NVML did not answer for it in 60 s"


async def test_a_child_that_hangs_is_killed_and_waited_for(s: Scene) -> None:
    s.give(hang=True)
    await s.late(after_s=120)
    assert s.inventory.problem == "NVML did not answer in 60 s"
    assert s.nvml._running is None
    lingering = s.nvml.child.lingering
    assert lingering is not None
    assert await lingering.wait() == -signal.SIGKILL
    # This process stands for a killed child that still hangs in the driver.
    sleeper = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=-1)
    s.nvml.child.lingering = sleeper
    await s.ask()
    assert "still hangs in the driver" in str(s.inventory.problem)
    sleeper.kill()
    await sleeper.wait()
    assert await s.ask(ONE)


@asynccontextmanager
async def real(host: Host) -> AsyncIterator[Inventory]:
    await asyncio.to_thread(host.up)
    try:
        gpus = Inventory(host.env(), deadline_s=60, min_interval_s=0, now=Clock())
        yield gpus
        await gpus.close()
    finally:
        await asyncio.to_thread(host.down)


@pytest.mark.sim
async def test_a_gpu_in_trouble_is_named_and_not_offered(build_dir: Path, tmp_path: Path) -> None:
    text = '[[gpu]]\nuuid = "GPU-00000000-0000-0000-0000-00000000000{0}"\nminor = {0}\n'
    gpu = f'{text}memory = "1Gi"\n'
    mig = 'mig_uuid = "MIG-00000000-0000-0000-0000-000000000009"\n'
    config = tmp_path / "host.toml"
    config.write_text(gpu.format(0) + gpu.format(1) + mig + gpu.format(2))
    host = Host(tmp_path / "sim", ("--config", config), build_dir)
    async with real(host) as gpus:
        await gpus.refresh()
        assert [gpu.minor for gpu in gpus.gpus] == [0, 2]
        assert "MIG mode is enabled" in gpus.seen[1].problem
        assert gpus.seen[1].memory_bytes == GIB and gpus.seen[1].bus_id
        whole = gpus.seen
        for action, problem in (("reset", "recovery: reset the GPU"), ("none", "")):
            host.fault("recovery", action)
            await gpus.refresh()
            assert problem in gpus.seen[0].problem
        host.fault("lose", gpu=2)
        for _ in range(2):
            await gpus.refresh()
            # A lost GPU does not even report its name.
            assert gpus.gpus == whole[:1]
            assert gpus.seen[2] == replace(whole[2], problem="GPU is lost")


@pytest.mark.sim
async def test_a_gpu_that_hangs_in_the_driver_is_unhealthy(build_dir: Path, tmp_path: Path) -> None:
    """The real child queries the simulated driver. Calls to the GPU take an hour, later no time."""
    host = Host(tmp_path / "sim", ("--gpu", str(GIB), "--gpu", str(2 * GIB)), build_dir)
    async with real(host) as gpus:
        deadlines = inventory_scene.Deadlines(gpus.nvml)
        await gpus.refresh()
        healthy = gpus.seen
        assert [gpu.memory_bytes for gpu in gpus.gpus] == [GIB, 2 * GIB]
        host.fault("latency", "MEMORY_INFO", str(3600 * 10**9), gpu=1)
        await deadlines.after(gpus.refresh(), 0)
        assert (gpus.gpus, gpus.problem) == (healthy[:1], None)
        for _ in range(3):
            await gpus.refresh()
            assert gpus.gpus == healthy[:1]
            answers = await gpus.nvml.ask("processes")
            assert answers.lines[0]["uuid"] == healthy[0].uuid
        await gpus.close()
        host.fault("latency", "MEMORY_INFO", "0", gpu=1)
        await gpus.refresh()
        assert gpus.gpus == healthy
