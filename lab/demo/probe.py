"""What NVIDIA's own Python packages report for GPU 0 in a pod of the demo, as JSON.

This program is copied into a container, so it imports nothing of the lab.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pynvml
from cuda.bindings import driver


def _cuda(answer: tuple[Any, ...]) -> Any:
    """Return the value after the result code. End the program if the code is an error."""
    code, *values = answer
    if code != driver.CUresult.CUDA_SUCCESS:
        sys.exit(f"CUDA: {code.name}")
    return values[0] if len(values) == 1 else tuple(values)


_cuda(driver.cuInit(0))
_device = _cuda(driver.cuDeviceGet(0))
_cuda(driver.cuCtxSetCurrent(_cuda(driver.cuDevicePrimaryCtxRetain(_device))))
pynvml.nvmlInit()
_handle = pynvml.nvmlDeviceGetHandleByIndex(0)
_memory = pynvml.nvmlDeviceGetMemoryInfo(_handle)
_seen = {
    "uuid": pynvml.nvmlDeviceGetUUID(_handle),
    "nvml_total": int(_memory.total),
    "nvml_free": int(_memory.free),
    "cuda_total": int(_cuda(driver.cuDeviceTotalMem(_device))),
    "cuda_free": int(_cuda(driver.cuMemGetInfo())[0]),
}
sys.stdout.write(f"{json.dumps(_seen)}\n")
