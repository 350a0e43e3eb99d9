"""In real time, the container with the window is killed, forks, or waits for a kernel on another
GPU, where another container has the window."""

from __future__ import annotations

import sys
import time
from itertools import pairwise

import psutil
import pytest

from gpuslice.contract.lease_file import CYCLE_NS
from tests.shim.compute.conftest import Start
from tests.support import measured

pytestmark = pytest.mark.sim

PREPARED = """
import mmap, os, sys, threading, time
from tests.simgpu.programs.gpu_time import *
"""
TIMED = f"""{PREPARED}
begin()
function = kernel()
while True:  # the pipe can hold all lines
    busy(function, 10 * MS)
    ok(driver.cuCtxSynchronize())
    print(time.monotonic_ns(), flush=True)
"""
BLOCKED = f"""{PREPARED}
begin()
function = kernel()
for _ in range(3):  # the library measures the kernel's duration
    busy(function, 400 * MS)
    ok(driver.cuCtxSynchronize())
busy(function, 400 * MS)
print("launched", flush=True)
time.sleep(60)
"""


@measured
def test_the_window_of_a_holder_killed_in_a_long_kernel_passes_on(start: Start) -> None:
    """The other container gets the window within a cycle, although the kernel would run longer.
    After the kill, no process of the killed container uses the GPU."""
    other = start(["--core", "50"], sys.executable, "-c", TIMED)
    shell = ("/bin/sh", "-c", '"$0" -c "$1" blocked; sleep 5', sys.executable, BLOCKED)
    holder = start(["--core", "50"], *shell)
    assert holder.stdout and other.stdout
    assert holder.stdout.readline() == "launched\n"
    children = psutil.Process(holder.pid).children(recursive=True)
    next(each for each in children if each.cmdline()[-1] == "blocked").kill()
    ends_ns = [time.monotonic_ns()]
    while ends_ns[-1] < ends_ns[0] + 4 * CYCLE_NS:
        ends_ns.append(max(int(other.stdout.readline()), ends_ns[0]))
    other.kill()
    assert max(after - before for before, after in pairwise(ends_ns)) < CYCLE_NS


FORKING = f"""{PREPARED}
context = begin()
function, running, launches = kernel(), True, []
def launch_always():
    ok(driver.cuCtxSetCurrent(context))
    while running:
        launches.append(busy(function, MS // 5))
thread = threading.Thread(target=launch_always)
thread.start()
for number in range(30):
    child = os.fork()
    if not child and number % 2:
        os.execv("/bin/true", ["true"])
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    time.sleep(0.01)
running = False
thread.join()
print(len(launches), flush=True)
if len(sys.argv) < 2:
    os.execv(sys.executable, [*sys.orig_argv, "again"])
"""


def test_a_holder_forks_and_executes_while_it_launches(start: Start) -> None:
    """The children exit or execute a program. Then the holder executes a program that launches."""
    start(["--core", "50"], sys.executable, "-c", TIMED)
    holder = start(["--core", "50"], sys.executable, "-c", FORKING)
    out, _ = holder.communicate(timeout=200)
    assert holder.returncode == 0
    launches = [int(line) for line in out.split()]
    assert len(launches) == 2 and min(launches) >= 20


RANK = f"""{PREPARED}
gpu, path, first = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
begun = mmap.mmap(os.open(path, os.O_RDWR), 2)
ok(driver.cuInit(0))
for number in (1, 2):
    context = ok(driver.cuCtxCreate(None, 0, driver.CUdevice(gpu)))
    function = kernel()
    for _ in range(30 if gpu == first else 90):
        busy(function, MS)
    busy(function, 3600 * 1000 * MS)
    begun[gpu] = number
    behind = 0
    while begun[1 - gpu] < number:
        if behind < 500:  # fewer than the 1,024 of a channel
            busy(function, MS)
            behind += 1
    ok(driver.cuCtxDestroy(context))
"""


def test_kernels_of_two_jobs_that_wait_for_each_other_across_gpus(
    start: Start, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each of two jobs has a process on each of two GPUs, and first gets the window of another GPU
    than the other job. As in a collective, a process's kernel runs until the job's other process
    has begun. Meanwhile the process launches more work, and then destroys its context."""
    jobs = []
    for first in (0, 1):
        path = tmp_path_factory.mktemp("job") / "begun"
        path.write_bytes(bytes(2))
        ranks = " & ".join(f'"$0" -c "$1" {gpu} {path} {first}' for gpu in (0, 1))
        shell = ("/bin/sh", "-c", f"{ranks} & wait", sys.executable, RANK)
        jobs.append((path, start(["--gpu", "1", "--core", "50"], *shell)))
    for path, job in jobs:
        job.communicate(timeout=200)
        assert path.read_bytes() == bytes([2, 2])
