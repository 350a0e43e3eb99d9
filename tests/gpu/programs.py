"""The code with which programs of the GPU tests begin. It is that of tests/shim, except that an
account (account.py) replaces the figures that only a simulated GPU reports."""

from __future__ import annotations

from typing import Final

from tests.shim.clients import CUDA
from tests.shim.exact import EXACT, GRAPHS, PHYSICAL

BEGIN: Final = (
    CUDA
    + """
import os
from pathlib import Path
from shim import region
from tests.gpu.account import BLOCK, Account
INVALID = d.CUresult.CUDA_ERROR_INVALID_VALUE
account = Account()
free_bytes = account.free_bytes()
def held(gpu=0):
    return account.held()
def charged(gpu=0):
    return account.charged()
took, agrees = account.took, account.agrees
"""
)


def over_a_gpu(prelude: str) -> str:
    assert prelude.startswith(EXACT)
    return BEGIN + prelude.removeprefix(EXACT) + "took = account.took\n"


ON_GRAPHS: Final = over_a_gpu(GRAPHS)
ON_PHYSICAL: Final = over_a_gpu(PHYSICAL)
KERNEL: Final = '''
import ctypes, itertools, statistics, time
PTX = b"""
.version 6.0
.target sm_50
.address_size 64
// simgpu: duration_argument=1
.visible .entry busy(.param .u64 loops, .param .u64 ns, .param .u64 to)
{
	.reg .u64 %left, %x, %to;
	.reg .pred %more;
	ld.param.u64 %left, [loops];
	ld.param.u64 %to, [to];
	mov.u64 %x, %left;
again:
	mad.lo.u64 %x, %x, 6364136223846793005, 1442695040888963407;
	sub.u64 %left, %left, 1;
	setp.ne.u64 %more, %left, 0;
	@%more bra again;
	st.global.u64 [%to], %x;
	ret;
}
"""
function = must(d.cuModuleGetFunction(must(d.cuModuleLoadData(PTX)), b"busy"))
stream = must(d.cuStreamCreate(1))
def event():
    return must(d.cuEventCreate(0))
def mark(event):
    must(d.cuEventRecord(event, stream))
def launch(ms, loops=None):
    # The kernel writes what it computes. Otherwise a compiler would remove the loop.
    values = (loops or int(ms * LOOPS_PER_MS) + 1, int(ms * 1e6), int(to))
    given = (values, (ctypes.c_uint64,) * 3)
    must(d.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, given, 0))
def ms(first, second):
    return must(d.cuEventElapsedTime(first, second))
to = must(d.cuMemAlloc(8))
tries = [event() for _ in range(51)]
for each in tries:
    mark(each); launch(0.1, 100_000)
must(d.cuStreamSynchronize(stream))
LOOPS_PER_MS = 100_000 / min(ms(*each) for each in itertools.pairwise(tries))
first, second = event(), event()
'''
"""Kernels of a given duration, in a stream, and events."""
VIEWS: Final = """
import ctypes, pynvml
def by_cuda():
    from cuda.bindings import driver as d
    assert d.cuInit(0)[0] == 0
    context = d.cuDevicePrimaryCtxRetain(0)[1]
    assert d.cuCtxSetCurrent(context)[0] == 0
    _, free, total = d.cuMemGetInfo()
    assert d.cuDeviceTotalMem(0)[1] == total
    return total, total - free
def by_nvml():
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(UUID)
    first = pynvml.nvmlDeviceGetMemoryInfo(handle)
    second = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    assert (first.total, second.total) == (second.total, first.total), (first, second)
    return first.total, first.used
"""
