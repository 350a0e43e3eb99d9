"""Shares of compute in real time: programs under the library on the simulated GPU.

Few and coarse, because the machine is shared: test_shares.py has the accuracy, in virtual time, and
`python -m bench core` the figures.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from gpuslice.contract import names
from shim import region
from simgpu.load_output import totals
from tests.shim.compute.conftest import Start
from tests.shim.conftest import Host, set_share
from tests.support import ROOT, measured, until

pytestmark = pytest.mark.sim

LOAD = ROOT / "build/dev/bin/cuda-load"
SECONDS = 4


def percent(process: subprocess.Popen[str]) -> float:
    """The work that a load got done, in percent of its time."""
    out, _ = process.communicate(timeout=200)
    assert process.returncode == 0
    return total(out)


def total(out: str) -> float:
    ((_, worked),) = totals(out)
    return worked


def load(*arguments: str) -> Sequence[str | Path]:
    return (LOAD, str(SECONDS), *arguments)


@pytest.mark.parametrize(
    "mode", ["launch", "graph", "cooperative", "ex"], ids=lambda mode: f"by {mode}"
)
@measured
def test_a_forced_share_is_a_cap_for_every_launch(start: Start, mode: str) -> None:
    capped = percent(start(["--core", "30", "--core-policy", "force"], *load("200", mode, "2")))
    assert 20 <= capped <= 36


def without_an_arbiter(tmp_path: Path) -> Mapping[str, str]:
    """A share of 30 by HAMi's variable, without a grant."""
    return {
        names.ENV_CORE_LIMIT: "30",
        names.ENV_CONTEXT: "300m",
        names.ENV_SHARED_CACHE: str(tmp_path / "cache"),
    }


@measured
def test_hamis_variable_is_a_cap(gpu_host: Host, tmp_path: Path) -> None:
    """The container has its own part of each cycle."""
    done = gpu_host.run(load("200"), variables=without_an_arbiter(tmp_path))
    assert 20 <= total(done.stdout) <= 36


def busy_percent(directory: Path) -> float:
    """Return the busy percent of one second, by the library's count."""
    begun_ns, before_ns = time.monotonic_ns(), region.status(directory)[0].work.busy_ns
    time.sleep(1)
    worked_ns = region.status(directory)[0].work.busy_ns - before_ns
    return 100 * worked_ns / (time.monotonic_ns() - begun_ns)


def test_a_share_changes_while_a_program_runs(start: Start, tmp_path: Path) -> None:
    """Up and down, from 200 ms later: the arbiter sees the grant, and a cycle ends. 35 is more than
    20 allows; a busy machine may not let the program use more of 70."""
    process = start(["--core", "20", "--core-policy", "force"], LOAD, "60", "200")
    arbiter_of(process)
    (directory,) = tmp_path.glob("gpuslice-*")
    while not region.status(directory)[0].work.busy_ns:
        time.sleep(0.05)

    @measured
    def has(percent: int, least: float, most: float) -> None:
        set_share(directory, percent)
        time.sleep(0.2)
        assert least <= busy_percent(directory) <= most

    for percent, least, most in ((20, 12, 26), (70, 35, 78), (20, 12, 26)):
        has(percent, least, most)


@measured
def test_two_programs_divide_the_gpu_by_their_shares(start: Start) -> None:
    one, other = (start(["--core", share], *load("500")) for share in ("25", "75"))
    shares = percent(one), percent(other)
    assert 1.8 <= shares[1] / shares[0] <= 4.2
    assert sum(shares) >= 60


@measured
def test_without_the_library_they_divide_it_equally(gpu_host: Host) -> None:
    """The control: what the test before shows is the library's."""
    environment = gpu_host.environment(preload=False)
    one, other = (
        subprocess.Popen(load("500"), env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    )
    with one, other:
        shares = percent(one), percent(other)
    assert shares[1] / shares[0] < 1.5


@measured
def test_one_program_alone_has_the_whole_gpu(start: Start) -> None:
    assert percent(start(["--core", "25"], *load("500"))) >= 60


def arbiter_of(process: subprocess.Popen[str], but: int = 0) -> psutil.Process:
    """The arbiter that a `run` started, and not the one with the number `but`."""
    found: list[psutil.Process] = []

    def is_there() -> bool:
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(process.pid).children()
            found.extend(c for c in children if c.pid != but and "arbiter" in c.cmdline())
        return bool(found)

    until(is_there, "an arbiter")
    return found[0]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@measured
def test_a_lost_arbiter_costs_little(start: Start, number: signal.Signals) -> None:
    """Both programs' arbiters are lost: each keeps its own part of each cycle, until its parent has
    noticed and started another one. On a busy machine a program launches too late for its whole
    percentage; blocked until its end, it would get a quarter of it."""
    programs = [start(["--core", share], LOAD, "9", "500") for share in ("30", "70")]
    lost = [arbiter_of(program) for program in programs]
    time.sleep(2)
    for arbiter in lost:
        arbiter.send_signal(number)
    for program, arbiter in zip(programs, lost, strict=True):
        arbiter_of(program, but=arbiter.pid)
        assert not arbiter.is_running()
    shares = [percent(program) for program in programs]
    assert all(
        0.6 * limit <= got <= limit + 15 for limit, got in zip((30, 70), shares, strict=True)
    ), shares


PREPARED = """
import os, sys, time
from tests.simgpu.programs.gpu_time import *
begin()
function = kernel()
streams = [ok(driver.cuStreamCreate(1)) for _ in range(2)]
"""


_WELL_BELOW_S = 20
"""The 60 seconds of that kernel, and the 30 after which a launch waits no longer."""
WAITING_FOR_LATER = (
    PREPARED
    + """
busy(function, 1000, streams[0])
ok(driver.cuCtxSynchronize())
busy(kernel(), 60_000 * MS, streams[0])
time.sleep(0.25)  # beyond its window
begun = time.monotonic()
for _ in range(3):
    busy(function, 1000, streams[1])
print(time.monotonic() - begun, flush=True)
os._exit(0)
"""
)


def test_a_kernel_without_an_end_holds_no_later_launch_back(start: Start) -> None:
    """It may wait for that launch: each is submitted after at most some cycles."""
    command = (sys.executable, "-c", WAITING_FOR_LATER)
    process = start(["--core", "50", "--core-policy", "force"], *command)
    out, _ = process.communicate(timeout=200)
    assert float(out) < _WELL_BELOW_S


def test_nor_does_it_without_an_arbiter(gpu_host: Host, tmp_path: Path) -> None:
    """It outlasts each window by more than the next one has."""
    done = gpu_host.python(WAITING_FOR_LATER, variables=without_an_arbiter(tmp_path))
    assert float(done.stdout) < _WELL_BELOW_S


def test_what_a_capture_records_waits_for_nothing(start: Start) -> None:
    """Outside of its window too: thousands of recorded launches take no turn. As launches they
    would take 50 s."""
    program = (
        PREPARED
        + """
for _ in range(300):
    busy(function, MS, streams[0])
ok(driver.cuStreamBeginCapture(streams[1], driver.CUstreamCaptureMode(2)))
begun = time.monotonic()
for _ in range(5000):
    busy(function, MS, streams[1])
took_s = time.monotonic() - begun
ok(driver.cuStreamEndCapture(streams[1]))
print(took_s)
"""
    )
    process = start(["--core", "10", "--core-policy", "force"], sys.executable, "-c", program)
    out, _ = process.communicate(timeout=200)
    assert float(out) < 20


@measured
def test_the_programs_of_one_container_divide_its_share(start: Start, tmp_path: Path) -> None:
    """Four processes under one `run`; the region counts the GPU's time once."""
    shell = " & ".join(" ".join(map(str, load("200"))) for _ in range(4)) + " & wait"
    process = start(["--core", "40", "--core-policy", "force"], "/bin/sh", "-c", shell)
    busy_ns = 0
    while process.poll() is None:
        with suppress(StopIteration, region.RegionDirectoryError):
            busy_ns = max(busy_ns, region.status(next(tmp_path.iterdir()))[0].work.busy_ns)
        time.sleep(0.1)
    out, _ = process.communicate()
    shares = [share for _, share in totals(out)]
    assert len(shares) == 4
    assert 28 <= sum(shares) <= 48
    assert busy_ns / 1e7 / SECONDS == pytest.approx(sum(shares), abs=6)


def test_nothing_is_left_when_programs_end(start: Start, tmp_path: Path) -> None:
    assert percent(start(["--core", "30"], LOAD, "1", "200")) > 0
    assert list(tmp_path.iterdir()) == []
