"""A kernel of more than a second is reported in the region, however the program waits for it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shim import region
from tests.shim.conftest import GIB, Grants, Host
from tests.support import ROOT

pytestmark = pytest.mark.sim

PREPARED = """
import sys, time
from tests.simgpu.programs.gpu_time import *
begin()
function, stream, event = kernel(), ok(driver.cuStreamCreate(1)), ok(driver.cuEventCreate(0))
def launch_for(ms):
    busy(function, ms * MS, stream)
    ok(driver.cuEventRecord(event, stream))
"""
BY_QUERIES = """
launch_for(60_000)
while driver.cuStreamQuery(stream)[0] is R.CUDA_ERROR_NOT_READY:
    time.sleep(0.01)
"""
KNOWN_AND_LONGER = """
launch_for(1)
ok(driver.cuEventSynchronize(event))
launch_for(1300)
ok(driver.cuEventSynchronize(event))
"""
SLEEPING = """
for _ in range(3):
    launch_for(1)
time.sleep(1.2)
ok(driver.cuStreamSynchronize(stream))
ok(driver.cuCtxSynchronize())
"""


@contextmanager
def running(host: Host, grant: Path, program: str) -> Iterator[subprocess.Popen[bytes]]:
    """`host` with a share of 99 percent, so that launches are checked; ended by a kill."""
    command = [sys.executable, "-c", f"{PREPARED}\n{program}\nprint(flush=True)\ntime.sleep(60)"]
    environment = {**host.environment(grant), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        yield process
        process.kill()


def unfinished_since_ns(grant: Path) -> int:
    return region.status(grant)[0].work.unfinished_since_ns


@pytest.mark.parametrize(
    "program",
    [
        "launch_for(60_000)\nok(driver.cuCtxSynchronize())",
        "launch_for(60_000)\nok(driver.cuStreamSynchronize(stream))",
        BY_QUERIES,
        KNOWN_AND_LONGER,
    ],
    ids=["context", "stream", "queries", "after the wait"],
)
def test_a_kernel_that_is_only_waited_for(host: Host, grants: Grants, program: str) -> None:
    grant = grants.make(GIB, GIB, core_percent=99)
    began_ns = time.monotonic_ns()
    with running(host, grant, program):
        deadline = time.monotonic() + 20
        while not (since_ns := unfinished_since_ns(grant)) and time.monotonic() < deadline:
            time.sleep(0.02)
    assert began_ns < since_ns < time.monotonic_ns() - 10**9
    assert unfinished_since_ns(grant) == since_ns


def test_a_program_that_sleeps_ran_no_long_kernel(host: Host, grants: Grants) -> None:
    grant = grants.make(GIB, GIB, core_percent=99)
    with running(host, grant, SLEEPING) as process:
        assert process.stdout and process.stdout.readline() == b"\n"
    assert unfinished_since_ns(grant) == 0
