"""Launches in a capture are not counted as work. All others are counted on the current GPU, also in
a per-thread default stream."""

from __future__ import annotations

import pytest

from tests.shim.conftest import GIB, Grants, Host

pytestmark = pytest.mark.sim

BEGIN = """
import os, sys, threading, time
from pathlib import Path
from shim import region
from tests.simgpu.programs.gpu_time import *
from tests.support import MIB
def work(gpu=0):
    return region.status(Path(os.environ["GPUSLICE_DIR"]))[gpu].work
def capture(name):
    mode = getattr(driver.CUstreamCaptureMode, f"CU_STREAM_CAPTURE_MODE_{name}")
    ok(driver.cuStreamBeginCapture(streams[1], mode))
def captured(launches):
    graph = ok(driver.cuStreamEndCapture(streams[1]))
    assert ok(driver.cuGraphGetNodes(graph, 0))[1] == launches
    return graph
context, function = begin(), kernel()
streams = [ok(driver.cuStreamCreate(1)) for _ in range(2)]
"""
OWN_DEFAULT_STREAM = {"CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM": "1"}
PROGRAMS = {
    "recorded": """
busy(function, MS, streams[0])
ok(driver.cuStreamSynchronize(streams[0]))
before = work()
assert before.spent_ns >= MS * 9 // 10
capture("RELAXED")
for _ in range(2000):
    busy(function, MS, streams[1])
graph = captured(2000)
assert work() == before, (before, work())
ok(driver.cuGraphLaunch(ok(driver.cuGraphInstantiate(graph, 0)), streams[0]))
ok(driver.cuStreamSynchronize(streams[0]))
assert work().spent_ns - before.spent_ns >= 1900 * MS, work()
""",
    "meanwhile": """
capture("GLOBAL")
busy(function, MS, streams[1])
def launch_and_be_measured():
    ok(driver.cuCtxSetCurrent(context))
    for _ in range(30):
        busy(function, 5 * MS, streams[0])
    ok(driver.cuStreamSynchronize(streams[0]))
thread = threading.Thread(target=launch_and_be_measured)
thread.start()
thread.join()
busy(function, MS, streams[1])
captured(2)
assert work().spent_ns >= 140 * MS, work()
""",
    "own default stream": """
memory = ok(driver.cuMemAlloc(MIB))
def launch():
    busy(function, MS // 2)
def launch_and_fill():
    launch()
    ok(driver.cuMemsetD8Async(memory, 0, 256 << 10, 0))
for submit in (launch, launch_and_fill):
    submit()  # only the first launch of each kind is followed by an event
    ok(driver.cuStreamSynchronize(0))
    before_ns = work().spent_ns
    submit()
    ok(driver.cuStreamSynchronize(0))
    assert work().spent_ns - before_ns >= MS // 4, (before_ns, work())
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_entered(host: Host, grants: Grants, name: str) -> None:
    variables = OWN_DEFAULT_STREAM if name == "own default stream" else {}
    grant = grants.make(GIB, GIB, core_percent=99)
    host.python(BEGIN + PROGRAMS[name], grant, variables=variables)
