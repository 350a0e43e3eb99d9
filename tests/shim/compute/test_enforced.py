"""Shares of compute in real time: programs under the library on the simulated GPU.

The tests are few and coarse, because other programs use the machine. test_shares.py tests the
accuracy in virtual time, and `python -m bench core` measures it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from gpuslice.contract import names
from simgpu.load_output import totals
from tests.shim.compute.conftest import Start
from tests.shim.conftest import Host
from tests.support import ROOT, measured, until

pytestmark = pytest.mark.sim

LOAD = ROOT / "build/dev/bin/cuda-load"


def percent(process: subprocess.Popen[str]) -> float:
    """Return how much of the load's running time the GPU worked for it, in percent."""
    out, _ = process.communicate(timeout=200)
    assert process.returncode == 0
    ((_, worked),) = totals(out)
    return worked


@measured
def test_a_forced_share_is_a_cap(start: Start) -> None:
    """Only kernel launches are tested here. test_entries.py tests every kind of launch."""
    capped = start(["--core", "30", "--compute", "capped"], LOAD, "4", "200")
    assert 20 <= percent(capped) <= 36


@measured
def test_hamis_variable_is_a_cap(gpu_host: Host, tmp_path: Path) -> None:
    """A container without a grant has no arbiter, so it uses its own part of each cycle."""
    cache = {names.ENV_SHARED_CACHE: str(tmp_path / "cache")}
    share = {names.ENV_CORE_LIMIT: "30", names.ENV_CONTEXT: "300m"}
    done = gpu_host.run([LOAD, "4", "200"], variables={**cache, **share})
    ((_, worked),) = totals(done.stdout)
    assert 20 <= worked <= 36


@measured
def test_two_programs_divide_the_gpu_by_their_shares(start: Start) -> None:
    both = [start(["--core", share], LOAD, "4", "500") for share in ("25", "75")]
    shares = [percent(each) for each in both]
    assert 1.8 <= shares[1] / shares[0] <= 4.2
    assert sum(shares) >= 60


def arbiter_of(process: subprocess.Popen[str], but: int = 0) -> psutil.Process:
    """Wait until the `shim run` process has an arbiter other than PID `but`, and return it."""
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
    """Both programs lose their arbiter. Until `shim run` has started another, each program uses its
    own part of each cycle. The lower bound is low, because a busy machine launches late. A program
    that stays blocked after the loss would get a quarter of its percentage."""
    limits = 30, 70
    programs = [start(["--core", str(limit)], LOAD, "9", "500") for limit in limits]
    lost = [arbiter_of(program) for program in programs]
    time.sleep(2)
    for arbiter in lost:
        arbiter.send_signal(number)
    for program, arbiter in zip(programs, lost, strict=True):
        arbiter_of(program, but=arbiter.pid)
        assert not arbiter.is_running()
    shares = zip(limits, [percent(program) for program in programs], strict=True)
    assert all(0.6 * limit <= got <= limit + 15 for limit, got in shares)


WAITING_FOR_LATER = """
import os, sys, time
from tests.simgpu.programs.gpu_time import *
begin()
function = kernel()
streams = [ok(driver.cuStreamCreate(1)) for _ in range(2)]
busy(function, 1000, streams[0])
ok(driver.cuCtxSynchronize())
busy(kernel(), 60_000 * MS, streams[0])
time.sleep(0.25)  # longer than the container's window
begun = time.monotonic()
for _ in range(3):
    busy(function, 1000, streams[1])
print(time.monotonic() - begun, flush=True)
os._exit(0)
"""


def test_a_kernel_without_an_end_holds_no_later_launch_back(start: Start) -> None:
    """The kernel may wait for work of a later launch. So that launch waits a few cycles at most."""
    command = (sys.executable, "-c", WAITING_FOR_LATER)
    process = start(["--core", "50", "--compute", "capped"], *command)
    out, _ = process.communicate(timeout=200)
    # The kernel takes 60 s. Any launch stops waiting after 30 s.
    assert float(out) < 20
