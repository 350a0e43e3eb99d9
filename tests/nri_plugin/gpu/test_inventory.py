"""The GPU inventory: a real child, which may answer, fail, print garbage or hang."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

import pytest

from nri_plugin.gpu.inventory import Inventory, decode, pace_s
from nri_plugin.policy.model import Gpu
from nri_plugin.policy.refusals import ChildError
from tests.simgpu.host import GIB, Host
from tests.support import Clock

ONE = '{"gpus": [{"uuid": "GPU-1", "minor": 0, "memory_bytes": 5}]}'


def serving(script: str) -> tuple[str, ...]:
    """A child that does this for each line that it reads."""
    body = "import sys\nfor _ in sys.stdin:\n    exec(sys.argv[1], {})\n    sys.stdout.flush()"
    return (sys.executable, "-c", body, script)


def inventory(script: str, clock: Clock | None = None, deadline_s: float = 60.0) -> Inventory:
    return Inventory(
        os.environ,
        deadline_s=deadline_s,
        min_interval_s=5.0,
        now=clock or Clock(),
        command=serving(script),
    )


async def test_the_gpus_are_kept() -> None:
    gpus = inventory(f"print('{ONE}')")
    assert not gpus.gpus
    assert gpus.problem is not None
    await gpus.refresh()
    assert gpus.gpus == (Gpu("GPU-1", 0, 5),)
    assert gpus.problem is None
    await gpus.close()


async def test_nvml_is_queried_at_most_once_in_the_interval(tmp_path: Path) -> None:
    log = tmp_path / "asked"
    clock = Clock()
    gpus = inventory(f"open({str(log)!r}, 'a').write('x'); print('{ONE}')", clock)
    await asyncio.gather(*(gpus.refresh() for _ in range(5)))
    await gpus.refresh()
    assert log.read_text() == "x"
    clock.seconds += 5
    await gpus.refresh()
    assert log.read_text() == "xx"
    await gpus.close()


async def test_an_inspection_whose_request_has_ended(tmp_path: Path) -> None:
    log = tmp_path / "asked"
    clock = Clock()
    gpus = inventory(f"open({str(log)!r}, 'a').write('x'); print('{ONE}')", clock)
    gpus.query_if_older(15)
    gpus.query_if_older(15)
    assert not gpus.gpus
    await gpus.refresh()
    assert (log.read_text(), len(gpus.gpus)) == ("x", 1)
    clock.seconds += 14
    gpus.query_if_older(15)
    clock.seconds += 1
    gpus.query_if_older(15)
    await gpus.refresh()
    assert log.read_text() == "xx"
    await gpus.close()


@pytest.mark.parametrize(("took_s", "pause_s"), [(0.0, 5.0), (0.1, 5.0), (0.5, 10.0), (9.0, 30.0)])
def test_a_slow_driver_is_queried_less_often(took_s: float, pause_s: float) -> None:
    assert pace_s(took_s, 5.0, 30.0) == pause_s


async def test_a_querys_duration_is_recorded_also_if_it_fails() -> None:
    """With a clock by which every query takes a second."""
    now = iter(range(1000))
    gpus = Inventory(
        os.environ,
        deadline_s=60.0,
        min_interval_s=0.0,
        now=lambda: next(now),
        command=serving(f"print('{ONE}')"),
    )
    assert gpus.took_s == 0
    await gpus.refresh()
    answered_s, gpus._child.command = gpus.took_s, ("/nowhere/python",)
    assert answered_s >= 1
    await gpus.close()
    gpus.took_s = 0
    await gpus.refresh()
    assert gpus.problem and gpus.took_s >= 1


def test_a_lasting_problem_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()

    async def work() -> None:
        gpus = inventory("import sys; sys.exit('NVML: Driver Not Loaded')", clock)
        for _ in range(3):
            await gpus.refresh()
            clock.seconds += 5
        gpus._child.command = ("/nowhere/python",)
        await gpus.refresh()

    with caplog.at_level(logging.INFO):
        asyncio.run(work())
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("import sys; sys.exit('first\\nNVML: Driver Not Loaded')", "NVML: Driver Not Loaded"),
        ("import os; os.abort()", "no message"),
        ("print('no gpus today')", "unreadable answer"),
        ("print('[{}]')", "unreadable answer"),
        ("print('{}')", "unreadable answer"),
        ("print(5)", "unreadable answer"),
    ],
)
async def test_a_failed_query_keeps_the_gpus_and_reports_the_cause(
    script: str, problem: str
) -> None:
    clock = Clock()
    gpus = inventory(f"print('{ONE}')", clock)
    await gpus.refresh()
    clock.seconds += 5
    await gpus.close()
    gpus._child.command = serving(script)
    await gpus.refresh()
    assert gpus.gpus == (Gpu("GPU-1", 0, 5),)
    assert problem in str(gpus.problem)
    await gpus.close()


async def test_a_child_that_cannot_be_started() -> None:
    gpus = inventory("")
    gpus._child.command = ("/nowhere/python",)
    await gpus.refresh()
    assert gpus.problem == "/nowhere/python: No such file or directory"


async def test_a_child_that_hangs_is_killed_and_not_followed_while_it_lingers() -> None:
    clock = Clock()
    gpus = inventory("import time; time.sleep(600)", clock, deadline_s=0.0)
    await gpus.refresh()
    assert gpus.problem == "NVML did not answer in 0 s"
    lingering = gpus._child.lingering
    assert lingering is not None
    assert await lingering.wait() == -signal.SIGKILL
    # To the agent, a child that no signal reaches is the same as this:
    sleeper = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=-1)
    gpus._child.lingering = sleeper
    clock.seconds += 5
    await gpus.refresh()
    assert "still hangs in the driver" in str(gpus.problem)
    sleeper.kill()
    await sleeper.wait()
    clock.seconds += 5
    gpus._child.deadline_s = 60.0
    gpus._child.command = serving(f"print('{ONE}')")
    await gpus.refresh()
    assert gpus.gpus
    await gpus.close()


async def test_one_child_answers_all_queries_and_is_replaced_when_it_exits(
    tmp_path: Path,
) -> None:
    """As NVML's does if the driver was replaced meanwhile."""
    log, clock = tmp_path / "pids", Clock()
    script = f"import os; open({str(log)!r}, 'a').write(f'{{os.getpid()}} '); print('{ONE}')"
    gpus = inventory(script, clock)
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


async def test_an_xid_of_the_gpu_lasts_and_one_of_a_program_does_not_count() -> None:
    xids = [[["GPU-1", 31], ["GPU-1", 79]], [["GPU-1", 43]], []]
    script = (
        f"import json, os, sys; left = sys.__dict__.setdefault('left', {xids!r});"
        " print(json.dumps({'gpus': [{'uuid': 'GPU-1', 'minor': 0, 'memory_bytes': 5}],"
        " 'xids': left.pop(0)}))"
    )
    clock = Clock()
    gpus = inventory(script, clock)
    for _ in xids:
        await gpus.refresh()
        assert gpus.gpus == ()
        (seen,) = gpus.seen
        assert seen.problem == "the driver reported XID 79 (GPU has fallen off the bus)"
        clock.seconds += 5
    await gpus.close()


async def test_an_xid_outlasts_the_child_and_not_the_agent() -> None:
    """As with NVIDIA's device plugin: the driver reports an error once, and never its end."""
    script = (
        "import json, os; print(json.dumps({'gpus': [{'uuid': 'GPU-1', 'minor': 0,"
        " 'memory_bytes': 5}], 'xids': %s, 'driver': str(os.getpid())}), flush=True)"
    )
    clock = Clock()
    gpus = inventory(script % "[['GPU-1', 79]]", clock)
    await gpus.refresh()
    first = gpus.driver
    os.kill(int(first), signal.SIGKILL)
    gpus._child.command = serving(script % "[]")
    while gpus.driver == first:
        clock.seconds += 5
        await gpus.refresh()
    assert gpus.gpus == ()
    await gpus.close()
    restarted = inventory(script % "[]")
    await restarted.refresh()
    assert [gpu.uuid for gpu in restarted.gpus] == ["GPU-1"]
    await restarted.close()


async def test_a_cancelled_caller_leaves_the_query_to_the_next() -> None:
    gpus = inventory(f"print('{ONE}')")
    impatient = asyncio.create_task(gpus.refresh())
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.wait([impatient])
    assert impatient.cancelled()
    await gpus.refresh()
    assert gpus.gpus
    await gpus.close()


async def test_closing_ends_the_child() -> None:
    gpus = inventory("import time; time.sleep(600)")
    look = asyncio.create_task(gpus.refresh())
    await asyncio.sleep(0)
    await gpus.close()
    await asyncio.wait([look])
    assert look.cancelled()


async def test_without_a_driver_the_child_reports_it() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    gpus = Inventory(environment, deadline_s=60, min_interval_s=0, now=Clock())
    await gpus.refresh()
    assert gpus.problem is None or gpus.problem.startswith("NVML: ")
    await gpus.close()


def test_decode() -> None:
    assert decode(b'{"gpus": []}').gpus == ()
    with pytest.raises(ChildError):
        decode(b"\xff")


@pytest.mark.sim
def test_a_gpu_that_falls_off_the_bus_is_not_offered(build_dir: Path, tmp_path: Path) -> None:
    options = ("--gpu", str(GIB), "--gpu", str(2 * GIB))
    host = Host(tmp_path / "sim", options, build_dir)
    host.up()

    async def work() -> None:
        gpus = Inventory(host.env(), deadline_s=60, min_interval_s=0, now=Clock())
        await gpus.refresh()
        assert [gpu.memory_bytes for gpu in gpus.gpus] == [GIB, 2 * GIB]
        assert gpus.driver == "580.65.06"
        whole = gpus.seen
        assert gpus.gpus == whole
        host.fault("lose", gpu=1)
        for _ in range(3):
            await gpus.refresh()
            # It does not even report its name any more.
            assert (gpus.gpus, gpus.seen) == (whole[:1], whole[:1])
        await gpus.close()

    try:
        asyncio.run(work())
    finally:
        host.down()


@pytest.mark.sim
def test_a_gpu_in_mig_mode_is_in_trouble_and_keeps_its_memory(
    build_dir: Path, tmp_path: Path
) -> None:
    config = tmp_path / "host.toml"
    text = (
        '[[gpu]]\nuuid = "GPU-00000000-0000-0000-0000-00000000000{0}"\nminor = {0}\n'
        'memory = "1Gi"\n{1}'
    )
    mig = 'mig_uuid = "MIG-00000000-0000-0000-0000-000000000009"\n'
    config.write_text(text.format(0, "") + text.format(1, mig))
    host = Host(tmp_path / "sim", ("--config", config), build_dir)
    host.up()

    async def work() -> None:
        gpus = Inventory(host.env(), deadline_s=60, min_interval_s=0, now=Clock())
        await gpus.refresh()
        assert [gpu.minor for gpu in gpus.gpus] == [0]
        assert "MIG mode is enabled" in gpus.seen[1].problem
        assert gpus.seen[1].memory_bytes == GIB
        assert gpus.seen[1].bus_id
        await gpus.close()

    try:
        asyncio.run(work())
    finally:
        host.down()


async def test_a_gpu_in_trouble_is_named_and_not_offered() -> None:
    ill = '{"uuid": "GPU-2", "minor": 1, "memory_bytes": 0, "problem": "GPU is lost"}'
    well = '{"uuid": "GPU-1", "minor": 0, "memory_bytes": 5, "numa": 1, "root": "pci0000:3a"}'
    gpus = inventory(f"print('{{\"gpus\": [{well}, {ill}]}}')")
    await gpus.refresh()
    assert gpus.gpus == (Gpu("GPU-1", 0, 5, numa=1, root="pci0000:3a"),)
    assert gpus.seen[1] == Gpu("GPU-2", 1, 0, problem="GPU is lost")
    await gpus.close()
