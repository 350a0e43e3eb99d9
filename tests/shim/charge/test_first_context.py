"""The first context of a process on a GPU is charged the grant's figure, whatever others do.

Two accounts are compared: the GPU's own process list, read from NVML without the library, has the
process's figure; the region has the container's.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shim import region
from tests.shim.clients import CUDA, SERVE_COMMANDS
from tests.shim.conftest import GIB, MIB, Grants, Host
from tests.talking import talking

pytestmark = pytest.mark.sim

CONTEXT = 300 * MIB

_TOOLS = """
import ctypes, json, os, subprocess, sys
from pathlib import Path
from cuda.bindings import driver as d
from shim import region
library = ctypes.CDLL("libcuda.so.1")
OK, OOM = d.CUresult.CUDA_SUCCESS, d.CUresult.CUDA_ERROR_OUT_OF_MEMORY
MIB, GIB = 2**20, 2**30
CONTEXT = 300 * MIB
def must(answer):
    assert answer[0] == OK, answer
    return answer[1] if len(answer) == 2 else answer[1:]
OUTSIDE = '''
import pynvml, sys
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
for pid in map(int, sys.stdin):
    rows = {row.pid: row.usedGpuMemory for row in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)}
    print(rows.get(pid, 0), flush=True)
'''
outside = subprocess.Popen(
    [sys.executable, "-c", OUTSIDE],
    env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
    text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
)
def held():
    "What the gpu gave this process."
    print(os.getpid(), file=outside.stdin, flush=True)
    return int(outside.stdout.readline())
def used():
    return region.status(Path(os.environ["GPUSLICE_DIR"]))[0].use.used_bytes
def exact(expected):
    assert (held(), used()) == (expected, expected), (held(), used(), expected)
must(d.cuInit(0))
"""
_STEADY = "address = must(d.cuMemAlloc(GIB))\n" + SERVE_COMMANDS
_RESTLESS = (
    """
import threading
over, failures = threading.Event(), []
def restless():
    try:
        while not over.is_set():
            must(d.cuCtxSetCurrent(context))
            must(d.cuMemFree(must(d.cuMemAlloc(256 * MIB))))
    except BaseException as error:
        failures.append(error)
context = must(d.cuCtxGetCurrent())
thread = threading.Thread(target=restless)
address = must(d.cuMemAlloc(GIB))
thread.start()
"""
    + SERVE_COMMANDS
)


@contextmanager
def _neighbour(host: Host, directory: Path, does: str) -> Iterator[None]:
    """A process of another container, with a GiB of the GPU, that executes the test's commands."""
    with talking([sys.executable, "-c", CUDA + does], host.environment(directory)) as talk:
        yield
        if does == _RESTLESS:
            talk.do("over.set(); thread.join(); assert not failures")


_CREATIONS = {
    "retain": "must(d.cuCtxSetCurrent(must(d.cuDevicePrimaryCtxRetain(0))))",
    "create": "must(d.cuCtxCreate(None, 0, 0))",
    "create_v2": "assert library.cuCtxCreate_v2(ctypes.byref(ctypes.c_void_p()), 0, 0) == 0",
    "create_v4": "assert library.cuCtxCreate_v4(ctypes.byref(ctypes.c_void_p()), None, 0, 0) == 0",
}


@pytest.mark.parametrize("creation", _CREATIONS)
def test_a_first_context_beside_a_neighbour_is_charged_its_size(
    gpu_host: Host, grants: Grants, creation: str
) -> None:
    mine = grants.make(GIB)
    theirs = grants.make(2 * GIB)
    with _neighbour(gpu_host, theirs, _STEADY):
        gpu_host.python(
            _TOOLS
            + f"""
{_CREATIONS[creation]}
exact(CONTEXT)
assert must(d.cuMemGetInfo()) == (GIB - CONTEXT, GIB)
kept = must(d.cuMemAlloc(64 * MIB))
exact(CONTEXT + 64 * MIB)
second = must(d.cuCtxCreate(None, 0, 0))
exact(2 * CONTEXT + 64 * MIB)
must(d.cuCtxDestroy(second))
exact(CONTEXT + 64 * MIB)
""",
            mine,
        )
        assert region.status(theirs)[0].use.used_bytes == CONTEXT + GIB


def test_a_context_beyond_the_limit_is_never_created(gpu_host: Host, grants: Grants) -> None:
    """Reserved before: the GPU's process list never shows it, nor does a reset of a context that
    was never created change the charge."""
    gpu_host.python(
        _TOOLS
        + """
for _ in range(2):
    assert d.cuDevicePrimaryCtxRetain(0)[0] == OOM
    assert d.cuCtxCreate(None, 0, 0)[0] == OOM
    exact(0)
    assert tuple(d.cuDevicePrimaryCtxGetState(0))[2] == 0
""",
        grants.make(CONTEXT - 1),
    )
    gpu_host.python(
        _TOOLS + "must(d.cuDevicePrimaryCtxRetain(0))\nexact(CONTEXT)",
        grants.make(CONTEXT),
    )


def test_memory_of_exited_processes_is_not_charged_to_a_context(
    slow_gpu_host: Host, grants: Grants
) -> None:
    directory = grants.make(2 * GIB)
    killed = CUDA + "import os\nmust(d.cuMemAlloc(GIB)); os.kill(os.getpid(), 9)"
    slow_gpu_host.run([sys.executable, "-c", killed], directory, status=-9)
    slow_gpu_host.python(_TOOLS + "must(d.cuDevicePrimaryCtxRetain(0))\nexact(CONTEXT)", directory)


def test_the_first_context_of_a_process_is_charged_an_allowance_for_code(
    gpu_host: Host, grants: Grants
) -> None:
    """No other context is charged it, until one is the first again."""
    gpu_host.python(
        _TOOLS
        + """
must(d.cuCtxSetCurrent(must(d.cuDevicePrimaryCtxRetain(0))))
assert used() == CONTEXT + 64 * MIB
second = must(d.cuCtxCreate(None, 0, 0))
assert used() == 2 * CONTEXT + 64 * MIB
must(d.cuCtxDestroy(second))
must(d.cuDevicePrimaryCtxRelease(0))
assert used() == 0
must(d.cuCtxCreate(None, 0, 0))
assert used() == CONTEXT + 64 * MIB
""",
        grants.make(2 * GIB, code_bytes=64 * MIB),
    )


def test_a_context_that_came_by_a_call_without_a_hook_is_charged_when_it_is_met(
    gpu_host: Host, grants: Grants
) -> None:
    """Regardless of the limit: it is on the GPU already."""
    gpu_host.python(
        _TOOLS
        + """
driver = ctypes.CDLL(os.environ["LD_LIBRARY_PATH"] + "/libcuda.so.1")
retain = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
past = next(
    int(line.split("-")[0], 16)
    for line in open("/proc/self/maps")
    if os.path.basename(line).startswith("libcuda.so")
) + OFFSET
context = ctypes.c_void_p()
assert retain(past)(ctypes.byref(context), 0) == 0
assert (held(), used()) == (CONTEXT, 0)
assert library.cuCtxSetCurrent(context) == 0
assert d.cuMemAlloc(2 * MIB)[0] == OOM
exact(CONTEXT)
""".replace("OFFSET", str(_symbol(gpu_host, "cuDevicePrimaryCtxRetain"))),
        grants.make(CONTEXT - MIB),
    )


def _symbol(host: Host, name: str) -> int:
    """Return the place of the driver's function in its file."""
    table = subprocess.run(
        ["nm", "-D", host.driver_dir / "libcuda.so.1"], capture_output=True, text=True, check=True
    ).stdout
    return next(
        int(line.split()[0], 16) for line in table.splitlines() if line.endswith(f" {name}")
    )
