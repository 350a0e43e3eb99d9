"""The code with which Python programs of these tests begin. It uses NVIDIA's Python bindings."""

from __future__ import annotations

from typing import Final

NO_CONTEXT: Final = """
from cuda.bindings import driver as d
OK, OOM = d.CUresult.CUDA_SUCCESS, d.CUresult.CUDA_ERROR_OUT_OF_MEMORY
MIB, GIB = 2**20, 2**30
def must(answer):
    assert answer[0] == OK, answer
    return answer[1] if len(answer) == 2 else answer[1:]
def use(ordinal):
    must(d.cuCtxSetCurrent(must(d.cuDevicePrimaryCtxRetain(must(d.cuDeviceGet(ordinal))))))
must(d.cuInit(0))
"""
CUDA: Final = NO_CONTEXT + "use(0)\n"
NVML: Final = """
import pynvml
pynvml.nvmlInit()
def gpu(index):
    return pynvml.nvmlDeviceGetHandleByIndex(index)
"""
SERVE_COMMANDS: Final = """
import sys
print("ready", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""
"""The last part of a program. It executes each line that the test sends."""
