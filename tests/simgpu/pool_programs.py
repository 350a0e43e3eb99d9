"""Stream-ordered memory over cuda-bindings: `python -m tests.simgpu.pool_programs NAME`.

As cuda_programs: each checks what it says and ends with status 0, or with a traceback.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final

from cuda.bindings import driver

from tests.simgpu.cuda_programs import GIB, MIB, PTX, R, begin, free_bytes, ok

CHUNK: Final = 32 * MIB
POSIX: Final = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
A: Final = driver.CUmemPool_attribute


def word(pool: Any, attribute: Any) -> int:
    return int(ok(driver.cuMemPoolGetAttribute(pool, attribute)))


def reserved(pool: Any) -> int:
    return word(pool, A.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)


def used(pool: Any) -> int:
    return word(pool, A.CU_MEMPOOL_ATTR_USED_MEM_CURRENT)


def new_pool(ordinal: int = 0, **fields: Any) -> Any:
    properties = driver.CUmemPoolProps()
    properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = ordinal
    for name, value in fields.items():
        setattr(properties, name, value)
    return ok(driver.cuMemPoolCreate(properties))


def chunks() -> None:
    """The card gives chunks of 32 MiB, and has them again after a synchronisation."""
    begin()
    pool = ok(driver.cuDeviceGetDefaultMemPool(0))
    assert int(pool) == int(ok(driver.cuDeviceGetMemPool(0)))
    before = free_bytes()
    small = [ok(driver.cuMemAllocAsync(1000, 0)) for _ in range(3)]
    assert (before - free_bytes(), reserved(pool), used(pool)) == (CHUNK, CHUNK, 3 * 1024)
    large = ok(driver.cuMemAllocAsync(33 * MIB + 1, 0))
    assert before - free_bytes() == reserved(pool) == CHUNK + 34 * MIB
    ok(driver.cuMemsetD8(large, 7, 33 * MIB + 1))
    assert driver.cuMemsetD8(large, 7, 33 * MIB + 2)[0] is R.CUDA_ERROR_INVALID_VALUE
    for address in (*small, large):
        ok(driver.cuMemFreeAsync(address, 0))
    assert driver.cuMemFreeAsync(large, 0)[0] is R.CUDA_ERROR_INVALID_VALUE
    assert (used(pool), reserved(pool)) == (0, CHUNK + 34 * MIB)
    ok(driver.cuStreamSynchronize(0))
    assert (before - free_bytes(), reserved(pool)) == (0, 0)
    assert word(pool, A.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == CHUNK + 34 * MIB
    high = A.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH
    ok(driver.cuMemPoolSetAttribute(pool, high, driver.cuuint64_t(0)))
    assert word(pool, high) == 0
    assert (
        driver.cuMemPoolSetAttribute(pool, high, driver.cuuint64_t(1))[0]
        is R.CUDA_ERROR_INVALID_VALUE
    )


def thresholds() -> None:
    """Up to the release threshold a pool keeps what is free, until it is trimmed."""
    begin()
    pool = new_pool()
    before = free_bytes()
    keep = driver.cuuint64_t(40 * MIB)
    ok(driver.cuMemPoolSetAttribute(pool, A.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, keep))
    addresses = [ok(driver.cuMemAllocFromPoolAsync(CHUNK, pool, 0)) for _ in range(3)]
    for address in addresses:
        ok(driver.cuMemFreeAsync(address, 0))
    ok(driver.cuCtxSynchronize())
    assert before - free_bytes() == reserved(pool) == CHUNK
    ok(driver.cuMemPoolTrimTo(pool, CHUNK))
    assert reserved(pool) == CHUNK
    ok(driver.cuMemPoolTrimTo(pool, CHUNK - 1))
    assert reserved(pool) == CHUNK, "it keeps at least that much"
    ok(driver.cuMemPoolTrimTo(pool, 0))
    assert (before - free_bytes(), reserved(pool)) == (0, 0)
    address = ok(driver.cuMemAllocFromPoolAsync(MIB, pool, 0))
    ok(driver.cuMemFree(address))
    ok(driver.cuMemPoolTrimTo(pool, 0))
    assert reserved(pool) == 0, "cuMemFree takes it back as well"
    ok(driver.cuMemPoolDestroy(pool))
    assert driver.cuMemPoolTrimTo(pool, 0)[0] is R.CUDA_ERROR_INVALID_VALUE


def order() -> None:
    """What a stream frees is free when the stream gets there; the stream itself may have it."""
    begin()
    pool = ok(driver.cuDeviceGetDefaultMemPool(0))
    function = ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(PTX)), b"brief"))
    hour = ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(PTX)), b"hour"))
    one, other = (ok(driver.cuStreamCreate(1)) for _ in range(2))
    address = ok(driver.cuMemAllocAsync(CHUNK, one))
    ok(driver.cuLaunchKernel(hour, 1, 1, 1, 1, 1, 1, 0, one, 0, 0))
    ok(driver.cuMemFreeAsync(address, one))
    assert int(ok(driver.cuMemAllocAsync(CHUNK, one))) == int(address)
    ok(driver.cuMemFreeAsync(address, one))
    elsewhere = ok(driver.cuMemAllocAsync(CHUNK, other))
    assert int(elsewhere) != int(address)
    ok(driver.cuMemFreeAsync(elsewhere, other))
    ok(driver.cuStreamSynchronize(other))
    assert reserved(pool) == CHUNK, "the hour is not over"
    ok(driver.cuMemPoolTrimTo(pool, 0))
    assert reserved(pool) == CHUNK
    assert driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, other, 0, 0)[0] is R.CUDA_SUCCESS


def pools() -> None:
    """Whose pool an allocation is, what a pool may hold, and what becomes of a destroyed one."""
    begin()
    default = ok(driver.cuDeviceGetDefaultMemPool(0))
    mine = new_pool(maxSize=64 * MIB)
    ok(driver.cuDeviceSetMemPool(0, mine))
    assert int(ok(driver.cuDeviceGetMemPool(0))) == int(mine)
    before = free_bytes()
    address = ok(driver.cuMemAllocAsync(40 * MIB, 0))
    handle = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE
    assert int(ok(driver.cuPointerGetAttribute(handle, address))) == int(mine)
    assert (reserved(default), reserved(mine)) == (0, 40 * MIB)
    assert driver.cuMemAllocAsync(25 * MIB, 0)[0] is R.CUDA_ERROR_OUT_OF_MEMORY
    assert driver.cuMemPoolDestroy(default)[0] is R.CUDA_ERROR_INVALID_VALUE
    ok(driver.cuMemPoolDestroy(mine))
    assert int(ok(driver.cuDeviceGetMemPool(0))) == int(default)
    assert before - free_bytes() == 40 * MIB, "what is allocated stays"
    ok(driver.cuMemFreeAsync(address, 0))
    ok(driver.cuStreamSynchronize(0))
    assert free_bytes() == before
    assert driver.cuDeviceSetMemPool(0, new_pool(1))[0] is R.CUDA_ERROR_INVALID_VALUE
    location = driver.CUmemLocation()
    location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = 1
    assert ok(driver.cuMemPoolGetAccess(default, location)).value == 0
    location.id = 0
    assert ok(driver.cuMemPoolGetAccess(default, location)).value == 3


def shortage() -> None:
    """A full card is trimmed before a pool is refused; a reset takes everything along."""
    begin()
    keep = driver.cuuint64_t(2**64 - 1)
    default, mine = ok(driver.cuDeviceGetDefaultMemPool(0)), new_pool()
    for pool in (default, mine):
        ok(driver.cuMemPoolSetAttribute(pool, A.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, keep))
    address = ok(driver.cuMemAllocAsync(20 * GIB, 0))
    assert driver.cuMemAllocFromPoolAsync(30 * GIB, mine, 0)[0] is R.CUDA_ERROR_OUT_OF_MEMORY
    ok(driver.cuMemFreeAsync(address, 0))
    ok(driver.cuStreamSynchronize(0))
    assert reserved(default) == 20 * GIB
    address = ok(driver.cuMemAllocFromPoolAsync(30 * GIB, mine, 0))
    assert (reserved(default), reserved(mine)) == (0, 30 * GIB)
    plain = ok(driver.cuMemAlloc(MIB))
    ok(driver.cuMemFreeAsync(plain, 0))
    assert driver.cuMemFree(plain)[0] is R.CUDA_ERROR_INVALID_VALUE
    ok(driver.cuDevicePrimaryCtxReset(0))
    begin()
    assert free_bytes() > 39 * GIB
    assert driver.cuMemFree(address)[0] is R.CUDA_ERROR_INVALID_VALUE


def leaving() -> None:
    """Plain memory freed in a stream: at once the program's no more, later the card's again."""
    begin()
    whole = free_bytes()
    context = ok(driver.cuCtxCreate(None, 0, 0))
    slow = b"// simgpu: duration_ns=2000000000\n.visible .entry slow() { ret; }\n"
    module = ok(driver.cuModuleLoadData(PTX + slow))
    stream = ok(driver.cuStreamCreate(1))
    brief, two_seconds, hour = (
        ok(driver.cuModuleGetFunction(module, name)) for name in (b"brief", b"slow", b"hour")
    )
    ok(driver.cuLaunchKernel(brief, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0))
    ok(driver.cuCtxSynchronize())
    before = free_bytes()
    address, small = ok(driver.cuMemAlloc(20 * GIB)), ok(driver.cuMemAlloc(1000))
    ok(driver.cuLaunchKernel(two_seconds, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0))
    for each in (address, small):
        ok(driver.cuMemFreeAsync(each, stream))
        assert driver.cuMemFreeAsync(each, stream)[0] is R.CUDA_ERROR_INVALID_VALUE
        assert driver.cuMemFree(each)[0] is R.CUDA_ERROR_INVALID_VALUE
    assert before - free_bytes() == 20 * GIB + 2 * MIB
    ok(driver.cuStreamSynchronize(stream))
    assert free_bytes() == before
    address = ok(driver.cuMemAlloc(20 * GIB))
    ok(driver.cuLaunchKernel(hour, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0))
    ok(driver.cuMemFreeAsync(address, stream))
    assert driver.cuStreamQuery(stream)[0] is R.CUDA_ERROR_NOT_READY
    assert driver.cuMemAlloc(21 * GIB)[0] is R.CUDA_ERROR_OUT_OF_MEMORY
    assert before - free_bytes() == 20 * GIB
    ok(driver.cuCtxDestroy(context))
    assert free_bytes() == whole


def two_devices() -> None:
    """A pool's memory is on its own card, whichever stream asks."""
    begin(1)
    far = new_pool(0)
    before = free_bytes()
    address = ok(driver.cuMemAllocFromPoolAsync(MIB, far, 0))
    assert free_bytes() == before
    assert reserved(far) == CHUNK
    ok(driver.cuMemFreeAsync(address, 0))
    ok(driver.cuMemPoolTrimTo(far, 0))
    assert reserved(far) == 0


_IMPORTER: Final = """
import ctypes, sys
from cuda.bindings import driver
from tests.simgpu.cuda_programs import MIB, R, begin, free_bytes, ok
from tests.simgpu.pool_programs import POSIX, reserved
begin()
before = free_bytes()
pool = ok(driver.cuMemPoolImportFromShareableHandle(int(sys.argv[1]), POSIX, 0))
data = driver.CUmemPoolPtrExportData()
ctypes.memmove(int(data.getPtr()), bytes.fromhex(sys.argv[2]), 64)
address = ok(driver.cuMemPoolImportPointer(pool, data))
assert free_bytes() == before, "it is the exporter's"
ok(driver.cuMemsetD8(address, 1, 5 * MIB))
assert driver.cuMemAllocFromPoolAsync(1, pool, 0)[0] is R.CUDA_ERROR_INVALID_VALUE
assert driver.cuDeviceSetMemPool(0, pool)[0] is R.CUDA_ERROR_INVALID_VALUE
sys.stdout.write("held\\n"); sys.stdout.flush()
sys.stdin.readline()
assert free_bytes() == before, "the exporter has freed it; it lives on here"
ok(driver.cuMemFreeAsync(address, 0))
ok(driver.cuStreamSynchronize(0))
assert free_bytes() == before + 32 * MIB
"""


def sharing() -> None:
    """A pool and an allocation of it in another process; memory lives while either holds it."""
    begin()
    pool = new_pool(handleTypes=POSIX)
    fd = int(ok(driver.cuMemPoolExportToShareableHandle(pool, POSIX, 0)))
    os.set_inheritable(fd, True)
    first = ok(driver.cuMemAllocFromPoolAsync(MIB, pool, 0))
    address = ok(driver.cuMemAllocFromPoolAsync(5 * MIB, pool, 0))
    data = ok(driver.cuMemPoolExportPointer(address))
    private = ok(driver.cuMemAllocAsync(MIB, 0))
    assert driver.cuMemPoolExportPointer(private)[0] is R.CUDA_ERROR_INVALID_VALUE
    default = ok(driver.cuDeviceGetDefaultMemPool(0))
    refused = driver.cuMemPoolExportToShareableHandle(default, POSIX, 0)
    assert refused[0] is R.CUDA_ERROR_INVALID_VALUE
    child = subprocess.Popen(
        [sys.executable, "-c", _IMPORTER, str(fd), ctypes.string_at(int(data.getPtr()), 64).hex()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        close_fds=False,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    for each in (first, address):
        ok(driver.cuMemFree(each))
    ok(driver.cuMemPoolTrimTo(pool, 0))
    assert reserved(pool) == 0
    child.communicate("\n")
    assert child.returncode == 0


PROGRAMS: Final[dict[str, Callable[[], None]]] = {
    program.__name__: program
    for program in (chunks, thresholds, order, pools, shortage, leaving, two_devices, sharing)
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]()
