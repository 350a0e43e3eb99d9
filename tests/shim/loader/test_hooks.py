"""cuda-bindings, unmodified, under the library: the limit holds, and is the only difference.

Each test is a program run in a process of its own; its assertions are those of a client.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from shim import region
from tests.shim.clients import CUDA, NVML
from tests.shim.conftest import GIB, GPUS, MIB, Grants, Host

pytestmark = pytest.mark.sim


def _used(directory: Path, gpu: int = 0) -> int:
    return region.status(directory)[gpu].use.used_bytes


def test_cuda_sees_the_limit_and_gets_no_more(host: Host, grants: Grants) -> None:
    directory = grants.make(3 * GIB)
    host.python(
        CUDA
        + """
assert must(d.cuDeviceTotalMem(0)) == 3 * GIB
assert must(d.cuMemGetInfo()) == (3 * GIB, 3 * GIB)
half = must(d.cuMemAlloc(GIB + 1))
free, total = must(d.cuMemGetInfo())
assert (free, total) == (2 * GIB - 2 * MIB, 3 * GIB)
rest = must(d.cuMemAlloc(free))
assert must(d.cuMemGetInfo()) == (0, 3 * GIB)
for size in (1, 512, GIB, 2**63, 2**64 - 1):
    assert d.cuMemAlloc(size)[0] == OOM, size
must(d.cuMemFree(half))
again = must(d.cuMemAlloc(GIB + 512))
assert d.cuMemAlloc(1)[0] == OOM
must(d.cuMemFree(again)); must(d.cuMemFree(rest))
assert must(d.cuMemGetInfo()) == (3 * GIB, 3 * GIB)
""",
        directory,
    )
    status = region.status(directory)[0].use
    assert (status.refused_count, status.last_refused_bytes) == (6, 2 * MIB)


@pytest.mark.parametrize("limit_bytes", [GIB + 76, GIB - 1, 2 * MIB + 1, 2 * MIB - 1])
def test_what_is_called_free_can_be_allocated_at_once(
    host: Host, grants: Grants, limit_bytes: int
) -> None:
    """A third of a GPU is no whole number of blocks, the GPU's unit of allocation."""
    host.python(
        CUDA
        + NVML
        + f"""
whole = {limit_bytes} // (2 * MIB) * 2 * MIB
assert must(d.cuMemGetInfo()) == (whole, {limit_bytes})
assert pynvml.nvmlDeviceGetMemoryInfo(gpu(0)).free == whole
if whole:
    must(d.cuMemAlloc(whole))
assert d.cuMemAlloc(1)[0] == OOM
assert must(d.cuMemGetInfo()) == (0, {limit_bytes})
""",
        grants.make(limit_bytes),
    )


def test_processes_share_one_limit(host: Host, grants: Grants) -> None:
    host.python(
        CUDA
        + """
import subprocess, sys
must(d.cuMemAlloc(GIB))
code = open("/proc/self/cmdline").read().split(chr(0))[2].split("import subprocess")[0]
code += '''
assert must(d.cuMemGetInfo()) == (GIB, 2 * GIB)
must(d.cuMemAlloc(GIB))
assert d.cuMemAlloc(1)[0] == OOM
'''
subprocess.run([sys.executable, "-c", code], check=True)
assert must(d.cuMemGetInfo()) == (GIB, 2 * GIB)
""",
        grants.make(2 * GIB),
    )


def test_a_gpu_outside_the_grant_has_no_memory(host: Host, grants: Grants) -> None:
    host.python(
        CUDA
        + """
assert must(d.cuDeviceGetCount()) == 2
assert must(d.cuDeviceTotalMem(1)) == 0
use(1)
assert must(d.cuMemGetInfo()) == (0, 0)
assert d.cuMemAlloc(1)[0] == OOM
use(0)
must(d.cuMemAlloc(GIB))
""",
        grants.make(GIB),
    )


def test_each_gpu_has_its_own_limit(host: Host, grants: Grants) -> None:
    directory = grants.make(GIB, 512 * MIB)
    host.python(
        CUDA
        + """
use(1)
assert must(d.cuMemGetInfo()) == (512 * MIB, 512 * MIB)
pointer = must(d.cuMemAlloc(512 * MIB))
assert d.cuMemAlloc(1)[0] == OOM
use(0)
assert must(d.cuMemGetInfo()) == (GIB, GIB)
must(d.cuMemFree(pointer))  # of the other gpu: what counts is where it was allocated
assert must(d.cuMemGetInfo()) == (GIB, GIB)
use(1)
assert must(d.cuMemGetInfo()) == (512 * MIB, 512 * MIB)
""",
        directory,
    )


def test_what_the_driver_refuses_is_refunded(host: Host, grants: Grants) -> None:
    """A limit above the GPU's size: the program gets the driver's refusal, which costs nothing."""
    directory = grants.make(100 * GIB)
    host.python(
        CUDA
        + """
assert must(d.cuDeviceTotalMem(0)) == 4 * GIB
assert d.cuMemAlloc(5 * GIB)[0] == OOM
assert must(d.cuMemGetInfo()) == (4 * GIB, 4 * GIB)
must(d.cuMemAlloc(4 * GIB))
assert must(d.cuMemGetInfo()) == (0, 4 * GIB)
""",
        directory,
    )
    assert region.status(directory)[0].use.refused_count == 0


def test_free_memory_is_no_more_than_the_neighbours_leave(host: Host, grants: Grants) -> None:
    host.python(
        CUDA
        + """
import os, subprocess, sys
must(d.cuMemAlloc(GIB))
neighbour = '''
from cuda.bindings import driver as d
d.cuInit(0); d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1])
assert int(d.cuMemAlloc(5 * 2**29)[0]) == 0
print("taken", flush=True); input()
'''
ours = ("LD_PRELOAD", "GPUSLICE_DIR")
outside = {key: value for key, value in os.environ.items() if key not in ours}
taker = subprocess.Popen([sys.executable, "-c", neighbour], env=outside,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert taker.stdout.readline() == b"taken" + bytes([10])
assert must(d.cuMemGetInfo()) == (GIB // 2, 3 * GIB)
taker.communicate(b"go" + bytes([10]))
""",
        grants.make(3 * GIB),
    )


def test_the_drivers_own_codes_come_back(host: Host, grants: Grants) -> None:
    """The same calls with and without the library; only the limit may differ; none is reached."""
    program = (
        CUDA
        + """
import ctypes
library = ctypes.CDLL("libcuda.so.1")
said = []
def call(name, *arguments):
    said.append((name, getattr(library, name)(*arguments)))
pointer, size = ctypes.c_uint64(), ctypes.c_size_t
for name in ("cuMemAlloc", "cuMemAlloc_v2"):
    call(name, None, size(512)); call(name, ctypes.byref(pointer), size(0))
for name in ("cuMemFree", "cuMemFree_v2"):
    call(name, size(0)); call(name, size(0x1234))
free, total = size(), size()
for name in ("cuMemGetInfo", "cuMemGetInfo_v2"):
    call(name, ctypes.byref(free), None); call(name, None, ctypes.byref(total))
    call(name, None, None)
for name in ("cuDeviceTotalMem", "cuDeviceTotalMem_v2"):
    call(name, None, 0); call(name, ctypes.byref(total), 99); call(name, ctypes.byref(total), -1)
good = must(d.cuMemAlloc(512))
must(d.cuMemFree(good))
call("cuMemFree_v2", size(int(good)))
call("cuInit", 1)
d.cuCtxSetCurrent(None)
call("cuMemAlloc_v2", ctypes.byref(pointer), size(512))
call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
print(said)
"""
    )
    managed = host.python(program, grants.make(GIB))
    assert managed.stdout == host.python(program, preload=False).stdout
    assert "0x" not in managed.stderr


def test_before_init_the_driver_says_so(host: Host, grants: Grants) -> None:
    program = """
import ctypes
library = ctypes.CDLL("libcuda.so.1")
pointer, size = ctypes.c_uint64(), ctypes.c_size_t()
print(library.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(512)),
      library.cuMemGetInfo_v2(ctypes.byref(size), ctypes.byref(size)),
      library.cuDeviceTotalMem_v2(ctypes.byref(size), 0),
      library.cuMemFree_v2(ctypes.c_uint64(512)))
"""
    directory = grants.make(GIB)
    assert host.python(program, directory).stdout == host.python(program, preload=False).stdout
    assert _used(directory) == 0


def test_the_32_bit_entries_are_limited_too(host: Host, grants: Grants) -> None:
    """Their figures and refusals; this driver's addresses do not fit (test_hooks_memory.py)."""
    directory = grants.make(GIB)
    host.python(
        CUDA
        + """
import ctypes
library = ctypes.CDLL("libcuda.so.1")
free, total, pointer = ctypes.c_uint32(), ctypes.c_uint32(), ctypes.c_uint32()
assert library.cuMemGetInfo(ctypes.byref(free), ctypes.byref(total)) == 0
assert (free.value, total.value) == (GIB, GIB)
assert library.cuDeviceTotalMem(ctypes.byref(total), 0) == 0
assert total.value == GIB
assert library.cuMemAlloc(ctypes.byref(pointer), ctypes.c_uint32(GIB + 1)) == 2
""",
        directory,
    )
    assert region.status(directory)[0].use.refused_count == 1, "by us, not by the driver"


def test_a_program_without_a_grant_is_as_without_the_library(host: Host) -> None:
    program = (
        CUDA
        + NVML
        + """
print(must(d.cuDeviceTotalMem(0)), must(d.cuMemGetInfo()))
pointer = must(d.cuMemAlloc(3 * GIB)); must(d.cuMemFree(pointer))
memory = pynvml.nvmlDeviceGetMemoryInfo(gpu(1)); print(memory.total, memory.free, memory.used)
"""
    )
    assert host.python(program).stdout == host.python(program, preload=False).stdout


def test_a_fork_child_frees_nothing_of_its_parents(host: Host, grants: Grants) -> None:
    host.python(
        CUDA
        + """
import ctypes, os
pointer = must(d.cuMemAlloc(GIB // 2))
child = os.fork()
if child == 0:
    library = ctypes.CDLL("libcuda.so.1")
    fresh = ctypes.c_uint64()
    codes = (library.cuMemFree_v2(ctypes.c_uint64(int(pointer))),
             library.cuMemAlloc_v2(ctypes.byref(fresh), ctypes.c_size_t(512)))
    os._exit(0 if codes == (3, 3) else 1)
assert os.waitpid(child, 0)[1] == 0
assert must(d.cuMemGetInfo()) == (GIB // 2, GIB)
must(d.cuMemFree(pointer))
assert must(d.cuMemGetInfo()) == (GIB, GIB)
""",
        grants.make(GIB),
    )


def test_memory_that_the_gpu_frees_late_is_waited_for(slow_host: Host, grants: Grants) -> None:
    """An exited process's charge ends at once, its memory a moment later: no spurious refusal."""
    directory = grants.make(GIB, 2 * GIB)
    killed = CUDA + "import os; use(1); must(d.cuMemAlloc(2 * GIB)); os.kill(os.getpid(), 9)"
    slow_host.run([sys.executable, "-c", killed], directory, status=-9)
    slow_host.python(CUDA + "use(1); must(d.cuMemAlloc(2 * GIB))", directory)


def test_gpus_are_known_by_uuid(host: Host) -> None:
    """The fixture's GPUs are what the driver reports: the tests above rest on it."""
    listed = host.python(
        NVML + "print([pynvml.nvmlDeviceGetUUID(gpu(index)) for index in (0, 1)])", preload=False
    )
    assert listed.stdout == f"{[uuid for uuid, _ in GPUS]}\n"
