"""Calls of NVIDIA's unmodified cuda-bindings whose result is checked, and a module of kernels."""

from __future__ import annotations

from typing import Any, Final

from cuda.bindings import driver

R = driver.CUresult
BLOCK: Final = 2 << 20

PTX: Final = b"""
.version 8.0
.target sm_80
.address_size 64
// simgpu: duration_ns=3600000000000
.visible .entry hour() { ret; }
.visible .entry brief() { ret; }
"""


def ok(returned: tuple[Any, ...]) -> Any:
    """The result of a call beside CUDA_SUCCESS."""
    assert returned[0] is R.CUDA_SUCCESS, returned[0]
    return returned[1] if len(returned) == 2 else returned[1:]


def begin(ordinal: int = 0) -> Any:
    ok(driver.cuInit(0))
    context = ok(driver.cuDevicePrimaryCtxRetain(ok(driver.cuDeviceGet(ordinal))))
    ok(driver.cuCtxSetCurrent(context))
    return context


def free_bytes() -> int:
    free, _ = ok(driver.cuMemGetInfo())
    return int(free)
