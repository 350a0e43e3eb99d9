"""Programs over NVIDIA's unmodified cuda-bindings: `python -m tests.simgpu.programs.cuda_programs
NAME`.

Each checks what its name and docstring state, and ends with status 0 or a traceback. Each runs as a
process of its own, because a process initialises the driver only once.
"""

from __future__ import annotations

import sys
import threading
from typing import Any, Final

from cuda.bindings import driver

from tests.support import GIB, MIB

R = driver.CUresult
BLOCK: Final = 2 << 20
PTX: Final = b"""
.version 8.0
.target sm_80
.address_size 64
// simgpu: duration_ns=3600000000000
.visible .entry hour() { ret; }
"""


def ok(returned: tuple[Any, ...]) -> Any:
    """Return the results of a call, without the code, which must be CUDA_SUCCESS."""
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


def devices() -> None:
    ok(driver.cuInit(0))
    assert ok(driver.cuDriverGetVersion()) == 13000
    assert ok(driver.cuDeviceGetCount()) == 2
    for ordinal in range(2):
        device = ok(driver.cuDeviceGet(ordinal))
        name = ok(driver.cuDeviceGetName(100, device)).split(b"\0")[0]
        assert name == b"NVIDIA SimGPU-40GB", name
        uuid = ok(driver.cuDeviceGetUuid(device)).bytes
        assert uuid.hex() == f"5e1f0a70000040008000{ordinal:012x}"
        assert ok(driver.cuDeviceTotalMem(device)) == 40 * GIB


def green_streams() -> None:
    """An event is recorded only in a stream of the green or other context that it was made in."""
    primary = begin()
    kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    described = ok(
        driver.cuDevResourceGenerateDesc([ok(driver.cuDeviceGetDevResource(0, kind))], 1)
    )
    green = ok(driver.cuGreenCtxCreate(described, 0, 1))
    stream, plain = ok(driver.cuGreenCtxStreamCreate(green, 1, 0)), ok(driver.cuStreamCreate(1))
    outside = ok(driver.cuEventCreate(0))
    ok(driver.cuMemsetD8Async(ok(driver.cuMemAlloc(BLOCK)), 1, BLOCK, stream))
    ok(driver.cuCtxSetCurrent(ok(driver.cuCtxFromGreenCtx(green))))
    inside, made_inside = ok(driver.cuEventCreate(0)), ok(driver.cuStreamCreate(1))
    for event, good, bad in (
        (inside, (stream, made_inside, 0), (plain,)),
        (outside, (plain,), (stream, made_inside, 0)),
    ):
        for each in good:
            ok(driver.cuEventRecord(event, each))
        for each in bad:
            assert driver.cuEventRecord(event, each)[0] is R.CUDA_ERROR_INVALID_HANDLE
    ok(driver.cuCtxSetCurrent(primary))
    ok(driver.cuEventRecord(outside, 0))
    ok(driver.cuStreamSynchronize(stream))


def visible_devices() -> None:
    """The argument has the last digits of the UUIDs of the visible GPUs, or is "none"."""
    wanted = sys.argv[2]
    if wanted == "none":
        assert driver.cuInit(0)[0] is R.CUDA_ERROR_NO_DEVICE
        return
    ok(driver.cuInit(0))
    count = ok(driver.cuDeviceGetCount())
    uuids = [ok(driver.cuDeviceGetUuid(driver.CUdevice(i))).bytes for i in range(count)]
    assert "".join(str(uuid[15]) for uuid in uuids) == wanted


def fill_the_gpu() -> None:
    begin()
    total = free_bytes()
    assert total == 40 * GIB
    held = [ok(driver.cuMemAlloc(total - GIB))]
    assert driver.cuMemAlloc(GIB + 1)[0] is R.CUDA_ERROR_OUT_OF_MEMORY
    held.append(ok(driver.cuMemAlloc(GIB - BLOCK)))
    held.append(ok(driver.cuMemAlloc(1)))
    assert free_bytes() == 0
    held.append(ok(driver.cuMemAlloc(BLOCK // 2)))
    assert int(held[3]) == int(held[2]) + 512, "there is room in a block that is there"
    assert driver.cuMemAlloc(BLOCK // 2)[0] is R.CUDA_ERROR_OUT_OF_MEMORY
    ok(driver.cuMemFree(held.pop(0)))
    assert free_bytes() == total - GIB
    for pointer in held:
        ok(driver.cuMemFree(pointer))
    assert free_bytes() == total


def contexts() -> None:
    primary = begin()
    device = driver.CUdevice(0)
    other = ok(driver.cuCtxCreate(None, 0, driver.CUdevice(1)))
    assert int(ok(driver.cuCtxGetCurrent())) == int(other)
    assert int(ok(driver.cuCtxGetDevice())) == 1
    seen: list[Any] = []

    def elsewhere() -> None:
        """A thread begins without a context, and has a context stack of its own."""
        seen.append(int(ok(driver.cuCtxGetCurrent())))
        seen.append(driver.cuMemAlloc(1)[0])
        ok(driver.cuCtxPushCurrent(primary))
        seen.append(int(ok(driver.cuCtxGetDevice())))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [0, R.CUDA_ERROR_INVALID_CONTEXT, 0]
    ok(driver.cuCtxDestroy(other))
    assert int(ok(driver.cuCtxGetCurrent())) == int(primary)
    assert driver.cuCtxSetCurrent(other)[0] is R.CUDA_ERROR_CONTEXT_IS_DESTROYED
    ok(driver.cuMemAlloc(MIB))
    again = ok(driver.cuDevicePrimaryCtxRetain(device))
    assert int(again) == int(primary)
    ok(driver.cuDevicePrimaryCtxRelease(device))
    assert ok(driver.cuDevicePrimaryCtxGetState(device)) == (0, 1)
    assert free_bytes() == 40 * GIB - BLOCK
    ok(driver.cuDevicePrimaryCtxReset(device))
    assert ok(driver.cuDevicePrimaryCtxGetState(device)) == (0, 0)
    assert driver.cuCtxSynchronize()[0] is R.CUDA_ERROR_CONTEXT_IS_DESTROYED
    ok(driver.cuDevicePrimaryCtxRetain(device))
    assert free_bytes() == 40 * GIB


def lose_the_gpu() -> None:
    """Prints a line, and then waits for a kernel of an hour."""
    begin()
    ok(driver.cuMemAlloc(MIB))
    hour = ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(PTX)), b"hour"))
    ok(driver.cuLaunchKernel(hour, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for call in (
        driver.cuCtxSynchronize,
        lambda: driver.cuMemAlloc(1),
        driver.cuMemGetInfo,
        lambda: driver.cuLaunchKernel(hour, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0),
    ):
        assert call()[0] is R.CUDA_ERROR_UNKNOWN


def no_device() -> None:
    assert driver.cuInit(0)[0] is R.CUDA_ERROR_NO_DEVICE
    assert driver.cuDeviceGetCount()[0] is R.CUDA_ERROR_NOT_INITIALIZED


if __name__ == "__main__":
    globals()[sys.argv[1]]()
