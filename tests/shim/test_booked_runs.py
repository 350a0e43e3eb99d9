"""`gpuslice run` books what it grants, and `gpuslice ps` lists what runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpuslice.contract import names
from gpuslice.gpu.bookings import Booking, Part, of_machine, started_ticks
from tests.shim.conftest import GIB, GPUS, MIB, Host
from tests.support import ROOT, measured, run, until

pytestmark = pytest.mark.sim

LOAD = ROOT / "build/dev/bin/cuda-load"
WAITING = ("sh", "-c", "echo $$; read line")
GPU = GPUS[0][0]

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def environment(gpu_host: Host, tmp_path: Path) -> dict[str, str]:
    return {**gpu_host.environment(preload=False), "TMPDIR": str(tmp_path)}


@pytest.fixture
def start(environment: dict[str, str]) -> Iterator[Start]:
    with ExitStack() as stack:

        def started(*arguments: str | Path) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, "-m", "gpuslice", "run", "--context-bytes=0", *arguments],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.terminate)
            return process

        yield started


def gpuslice(
    environment: Mapping[str, str], *arguments: str, status: int = 0
) -> subprocess.CompletedProcess[str]:
    done = run(sys.executable, "-m", "gpuslice", *arguments, env=environment)
    assert done.returncode == status, done
    return done


def test_what_a_killed_run_started_keeps_its_memory(
    start: Start, environment: Mapping[str, str]
) -> None:
    """The program outlasts a kill of `gpuslice run`, and is found by its process."""
    first = start("--memory", "3GiB", "--gpu", "0", "--core", "60", "--", *WAITING)
    assert first.stdout
    pid = int(first.stdout.readline())
    second = ["run", "--memory", "1GiB", "--gpu", "0", "--context-bytes=0"]
    holder = f"what is free of {GPU}: pid {pid} (sh) has 3GiB and 60 %\n"

    def refused(memory: str, core: str) -> str:
        limits = ["run", "--memory", memory, "--core", core, "--gpu", "0"]
        return gpuslice(environment, *limits, "--", "echo", "started", status=2).stderr

    too_much = f"gpuslice: --memory: invalid value 2GiB: must be at most 1GiB, {holder}"
    assert refused("2GiB", "40") == too_much
    first.kill()
    assert first.wait() and refused("2GiB", "40") == too_much
    assert refused("1GiB", "41") == (
        f"gpuslice: --core: invalid value 41: must be at most 40, {holder}"
    )
    assert gpuslice(environment, *second, "--", "echo", "started").stdout == "started\n"
    os.kill(pid, 9)
    until(lambda: started_ticks(pid) is None, "the end of the program")
    second[2] = "4GiB"
    assert gpuslice(environment, *second, "--", "echo", "started").stdout == "started\n"


def test_a_run_frees_its_booking_and_a_failed_one_too(environment: Mapping[str, str]) -> None:
    for command, status in (("true", 0), ("/no/such/program", 127)):
        gpuslice(environment, "run", "--memory", "100%", "--", command, status=status)
        assert os.listdir(environment[names.ENV_BOOKINGS]) == []
    invalid = ["--memory", "1GiB", "--code-bytes", "no"]
    gpuslice(environment, "run", *invalid, "--", "true", status=2)
    assert os.listdir(environment[names.ENV_BOOKINGS]) == []


@measured
def test_ps_shows_what_runs_and_what_it_uses(start: Start, environment: dict[str, str]) -> None:
    """`ps` shows what is booked, without a right to read the grant's files."""
    environment[names.ENV_BOOKINGS] += "-"  # the load of an earlier try may still run
    share = ("--gpu", "0", "--core", "30", "--compute", "capped")
    running = start("--memory", "1500MiB", *share, "--", LOAD, "20", "200")
    machine = of_machine(environment)
    own = os.getpid(), started_ticks(os.getpid()) or 0
    parts = [Part(uuid, GIB, 0) for uuid, _ in GPUS]
    with machine.locked():
        machine.book(
            Booking("web", "web", parts, *own, "container", "/absent"), dict(GPUS), lambda: None
        )

    def rows() -> Mapping[str, Any]:
        found = json.loads(gpuslice(environment, "ps", "-o", "json").stdout)
        return {each["name"]: each["parts"] for each in found}

    def works() -> bool:
        (part,) = rows().get("cuda-load", [{}])
        return (part.get("share_ratio") or 0) > 0.1

    until(works, "work of the load")
    shown = rows()
    (part,), others = shown["cuda-load"], shown["web"]
    assert 0.2 <= part["share_ratio"] <= 0.4 and part["throttled_ratio"] > 0.3
    assert part["limit_bytes"] == part["memory_bytes"] == 1500 * MIB
    assert 0 < part["used_bytes"] < part["limit_bytes"]
    assert [each["used_bytes"] for each in others] == [None, None]
    children = psutil.Process(running.pid).children()
    pid = next(each.pid for each in children if each.name() == "cuda-load")
    lines = [line.split() for line in gpuslice(environment, "ps").stdout.splitlines()]
    _, _, _, first, program, web, second, other = lines
    assert first[:4] == ["GPU", "0", "NVIDIA", "SimGPU"] and first[-2:] == ["core", "30%"]
    assert program[:3] == ["pid", str(pid), "(cuda-load)"] and program[-3:-1] == ["of", "30%"]
    assert web[0] == "web" and web[2:] == ["-", "of", "1.0", "-", "no", "cap", "-"]
    assert second[:4] == ["GPU", "1", "NVIDIA", "SimGPU"] and other == web
