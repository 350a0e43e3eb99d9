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
