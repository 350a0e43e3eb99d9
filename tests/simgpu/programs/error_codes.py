"""A program over NVIDIA's unmodified cuda-bindings: the code of each refused call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cuda.bindings import driver

from tests.simgpu.programs.cuda_calls import PTX, R, begin, ok


def error_codes() -> None:
    """One row per refusal: the call, the state, and the code that the driver documents."""
    found: list[str] = []

    def rows(state: str, table: list[tuple[str, Callable[[], tuple[Any, ...]], Any]]) -> None:
        for name, call, wanted in table:
            got = call()[0]
            if got is not wanted:
                found.append(f"{state}: {name}: {got.name}, not {wanted.name}")

    bad = 0xDEAD0
    device = driver.CUdevice(0)
    kind = driver.CUdevice_attribute
    rows(
        "before cuInit",
        [
            ("cuDeviceGetCount", driver.cuDeviceGetCount, R.CUDA_ERROR_NOT_INITIALIZED),
            ("cuDeviceGet", lambda: driver.cuDeviceGet(0), R.CUDA_ERROR_NOT_INITIALIZED),
            ("cuMemAlloc", lambda: driver.cuMemAlloc(1), R.CUDA_ERROR_NOT_INITIALIZED),
            ("cuCtxGetCurrent", driver.cuCtxGetCurrent, R.CUDA_ERROR_NOT_INITIALIZED),
            ("cuDriverGetVersion", driver.cuDriverGetVersion, R.CUDA_SUCCESS),
            ("cuInit(1)", lambda: driver.cuInit(1), R.CUDA_ERROR_INVALID_VALUE),
            ("cuInit(0)", lambda: driver.cuInit(0), R.CUDA_SUCCESS),
        ],
    )
    rows(
        "without a context",
        [
            ("cuDeviceGet(2)", lambda: driver.cuDeviceGet(2), R.CUDA_ERROR_INVALID_DEVICE),
            ("cuDeviceGet(-1)", lambda: driver.cuDeviceGet(-1), R.CUDA_ERROR_INVALID_DEVICE),
            ("cuMemAlloc", lambda: driver.cuMemAlloc(1), R.CUDA_ERROR_INVALID_CONTEXT),
            ("cuMemGetInfo", driver.cuMemGetInfo, R.CUDA_ERROR_INVALID_CONTEXT),
            ("cuCtxSynchronize", driver.cuCtxSynchronize, R.CUDA_ERROR_INVALID_CONTEXT),
            ("cuCtxPopCurrent", driver.cuCtxPopCurrent, R.CUDA_ERROR_INVALID_CONTEXT),
            ("cuCtxGetDevice", driver.cuCtxGetDevice, R.CUDA_ERROR_INVALID_CONTEXT),
            ("cuStreamCreate", lambda: driver.cuStreamCreate(0), R.CUDA_ERROR_INVALID_CONTEXT),
            (
                "cuDevicePrimaryCtxRelease",
                lambda: driver.cuDevicePrimaryCtxRelease(device),
                R.CUDA_ERROR_INVALID_CONTEXT,
            ),
            (
                "cuDeviceTotalMem(7)",
                lambda: driver.cuDeviceTotalMem(driver.CUdevice(7)),
                R.CUDA_ERROR_INVALID_DEVICE,
            ),
            (
                "a later driver's attribute",
                lambda: driver.cuDeviceGetAttribute(
                    kind.CU_DEVICE_ATTRIBUTE_LOCALITY_DOMAIN_COUNT, device
                ),
                R.CUDA_ERROR_INVALID_VALUE,
            ),
        ],
    )
    begin()
    pointer = int(ok(driver.cuMemAlloc(1000)))
    event = ok(driver.cuEventCreate(0))
    module = ok(driver.cuModuleLoadData(PTX))
    brief = ok(driver.cuModuleGetFunction(module, b"brief"))
    buffer = bytearray(2000)

    def launch(function: Any, *shape: int, stream: int = 0) -> tuple[Any, ...]:
        return driver.cuLaunchKernel(function, *shape, 0, stream, 0, 0)  # type: ignore[no-any-return]

    rows(
        "with a context",
        [
            ("cuMemAlloc(0)", lambda: driver.cuMemAlloc(0), R.CUDA_ERROR_INVALID_VALUE),
            ("too much", lambda: driver.cuMemAlloc(1 << 62), R.CUDA_ERROR_OUT_OF_MEMORY),
            ("far too much", lambda: driver.cuMemAlloc(2**64 - 1), R.CUDA_ERROR_OUT_OF_MEMORY),
            ("free NULL", lambda: driver.cuMemFree(0), R.CUDA_SUCCESS),
            ("free inside", lambda: driver.cuMemFree(pointer + 512), R.CUDA_ERROR_INVALID_VALUE),
            ("free unknown", lambda: driver.cuMemFree(bad), R.CUDA_ERROR_INVALID_VALUE),
            (
                "copy past the end",
                lambda: driver.cuMemcpyDtoH(buffer, pointer, 1001),
                R.CUDA_ERROR_INVALID_VALUE,
            ),
            (
                "copy to nowhere",
                lambda: driver.cuMemcpyHtoD(bad, buffer, 1),
                R.CUDA_ERROR_INVALID_VALUE,
            ),
            (
                "set past the end",
                lambda: driver.cuMemsetD32(pointer, 0, 251),
                R.CUDA_ERROR_INVALID_VALUE,
            ),
            (
                "set off alignment",
                lambda: driver.cuMemsetD32(pointer + 1, 0, 1),
                R.CUDA_ERROR_INVALID_VALUE,
            ),
            (
                "pitch of element 3",
                lambda: driver.cuMemAllocPitch(10, 10, 3),
                R.CUDA_ERROR_INVALID_VALUE,
            ),
            ("stream flags", lambda: driver.cuStreamCreate(2), R.CUDA_ERROR_INVALID_VALUE),
            ("stream", lambda: driver.cuStreamQuery(bad), R.CUDA_ERROR_INVALID_HANDLE),
            ("event flags", lambda: driver.cuEventCreate(8), R.CUDA_ERROR_INVALID_VALUE),
            ("event", lambda: driver.cuEventQuery(bad), R.CUDA_ERROR_INVALID_HANDLE),
            ("not recorded", lambda: driver.cuEventQuery(event), R.CUDA_SUCCESS),
            (
                "time of the unrecorded",
                lambda: driver.cuEventElapsedTime(event, event),
                R.CUDA_ERROR_INVALID_HANDLE,
            ),
            ("context", lambda: driver.cuCtxSetCurrent(bad), R.CUDA_ERROR_INVALID_CONTEXT),
            ("not PTX", lambda: driver.cuModuleLoadData(b"hello"), R.CUDA_ERROR_INVALID_IMAGE),
            (
                "no such file",
                lambda: driver.cuModuleLoad(b"/nonexistent.ptx"),
                R.CUDA_ERROR_FILE_NOT_FOUND,
            ),
            ("unload", lambda: driver.cuModuleUnload(bad), R.CUDA_ERROR_INVALID_HANDLE),
            ("function", lambda: launch(bad, 1, 1, 1, 1, 1, 1), R.CUDA_ERROR_INVALID_HANDLE),
            ("no blocks", lambda: launch(brief, 0, 1, 1, 1, 1, 1), R.CUDA_ERROR_INVALID_VALUE),
            (
                "too many threads",
                lambda: launch(brief, 1, 1, 1, 33, 32, 1),
                R.CUDA_ERROR_INVALID_VALUE,
            ),
            (
                "launch into no stream",
                lambda: launch(brief, 1, 1, 1, 1, 1, 1, stream=bad),
                R.CUDA_ERROR_INVALID_HANDLE,
            ),
            (
                "limit",
                lambda: driver.cuCtxGetLimit(driver.CUlimit.CU_LIMIT_MAX),
                R.CUDA_ERROR_UNSUPPORTED_LIMIT,
            ),
        ],
    )
    assert not found, "\n".join(found)
