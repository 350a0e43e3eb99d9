"""A kernel of more than a second is reported in the region, however its program waits for it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from shim import region
from tests.shim.conftest import GIB, Grants, Host
from tests.support import until

pytestmark = pytest.mark.sim

PROGRAM = """
import time
from tests.simgpu.programs.gpu_time import *
begin()
function, stream, event = kernel(), ok(driver.cuStreamCreate(1)), ok(driver.cuEventCreate(0))
def launch_for(ms):
    busy(function, ms * MS, stream)
    ok(driver.cuEventRecord(event, stream))
def query():
    while driver.cuStreamQuery(stream)[0] is R.CUDA_ERROR_NOT_READY:
        time.sleep(0.01)
def wait_for_the_event():
    ok(driver.cuEventSynchronize(event))
"""


@pytest.fixture
def grant(grants: Grants) -> Path:
    """A grant of 99 percent. At 100 percent, launches would not be checked."""
    return grants.make(GIB, GIB, core_percent=99)


def unfinished_since_ns(grant: Path) -> int:
    return region.status(grant)[0].work.unfinished_since_ns


@pytest.mark.parametrize(
    "lines",
    [
        ["launch_for(1300)", "ok(driver.cuCtxSynchronize())"],
        ["launch_for(1300)", "ok(driver.cuStreamSynchronize(stream))"],
        ["launch_for(60_000)", "query()"],
        ["launch_for(1)", "wait_for_the_event()", "launch_for(1300)", "wait_for_the_event()"],
        ["for ms in [0] * 9 + [1300, 1300]: launch_for(ms); wait_for_the_event()"],
    ],
    ids=["context", "stream", "queries", "after the wait", "after short ones of its kind"],
)
def test_a_kernel_that_is_only_waited_for(host: Host, grant: Path, lines: list[str]) -> None:
    began_ns = time.monotonic_ns()
    with host.serving(PROGRAM, grant) as program:
        for line in lines:
            program.send(line)
        until(lambda: unfinished_since_ns(grant) > 0, "the report")
        since_ns = unfinished_since_ns(grant)
    assert began_ns < since_ns == unfinished_since_ns(grant) < time.monotonic_ns() - 10**9


def test_a_program_that_sleeps_ran_no_long_kernel(host: Host, grant: Path) -> None:
    with host.serving(PROGRAM, grant) as program:
        for _ in range(3):
            program.do("launch_for(1)")
        time.sleep(1.2)
        program.do("ok(driver.cuStreamSynchronize(stream))")
    assert unfinished_since_ns(grant) == 0
