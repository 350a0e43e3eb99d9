"""The null driver: a driver's answers without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

pytestmark = pytest.mark.sim

PROLOGUE = """
from cuda.bindings import driver
R = driver.CUresult
def ok(returned):
    assert returned[0] is R.CUDA_SUCCESS, returned[0]
    return returned[1] if len(returned) == 2 else returned[1:]
ok(driver.cuInit(0))
device = ok(driver.cuDeviceGet(0))
ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(device))))
"""


def run(build_dir: Path, code: str, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROLOGUE + code],
        cwd=ROOT,
        env={**os.environ, "LD_LIBRARY_PATH": str(build_dir / "lib" / "null"), **environment},
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_fills_and_empties(build_dir: Path) -> None:
    run(
        build_dir,
        """
assert ok(driver.cuDeviceGetCount()) == 1
assert ok(driver.cuDeviceGetUuid(device)).bytes == b"null" + bytes([0, 0, 64, 0, 128]) + bytes(7)
MIB = 2**20
assert ok(driver.cuMemGetInfo()) == (8 * MIB, 8 * MIB)
held = [ok(driver.cuMemAlloc(size)) for size in (2 * MIB + 1, 1)]
assert ok(driver.cuMemGetInfo()) == (2 * MIB, 8 * MIB)
assert driver.cuMemAlloc(2 * MIB + 1)[0] is R.CUDA_ERROR_OUT_OF_MEMORY
held.append(ok(driver.cuMemAlloc(2 * MIB)))
held += [ok(driver.cuMemAlloc(512)) for _ in range(4095)]
assert driver.cuMemAlloc(1)[0] is R.CUDA_ERROR_OUT_OF_MEMORY
assert len({int(pointer) for pointer in held}) == len(held)
assert all(int(pointer) % 512 == 0 for pointer in held)
assert len({int(pointer) >> 21 for pointer in held}) == 3
for pointer in held:
    assert driver.cuMemFree(int(pointer) + 256)[0] is R.CUDA_ERROR_INVALID_VALUE
    ok(driver.cuMemFree(pointer))
    assert driver.cuMemFree(pointer)[0] is R.CUDA_ERROR_INVALID_VALUE
assert ok(driver.cuMemGetInfo()) == (8 * MIB, 8 * MIB)
assert driver.cuMemAlloc(0)[0] is R.CUDA_ERROR_INVALID_VALUE
assert driver.cuMemAlloc(2**64 - 1)[0] is R.CUDA_ERROR_OUT_OF_MEMORY
ok(driver.cuLaunchKernel(1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))
""",
        NULL_DRIVER_BYTES=str(8 << 20),
    )


def test_a_pool_keeps_what_was_freed_until_the_next_synchronisation(build_dir: Path) -> None:
    run(
        build_dir,
        """
MIB, A = 2**20, driver.CUmemPool_attribute
pool = ok(driver.cuDeviceGetDefaultMemPool(device))
def reserved():
    return int(ok(driver.cuMemPoolGetAttribute(pool, A.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)))
def used():
    return int(ok(driver.cuMemPoolGetAttribute(pool, A.CU_MEMPOOL_ATTR_USED_MEM_CURRENT)))
free, total = ok(driver.cuMemGetInfo())
small, large = ok(driver.cuMemAllocAsync(512, 0)), ok(driver.cuMemAllocAsync(40 * MIB, 0))
assert (reserved(), used()) == (64 * MIB, 40 * MIB + 512)
assert ok(driver.cuMemGetInfo()) == (free - 64 * MIB, total)
ok(driver.cuMemFreeAsync(large, 0))
assert (reserved(), used()) == (64 * MIB, 512)
assert int(ok(driver.cuMemAllocAsync(40 * MIB, 0))) and reserved() == 64 * MIB
ok(driver.cuMemFree(large))
ok(driver.cuStreamSynchronize(0))
assert reserved() == 2 * MIB
ok(driver.cuMemFreeAsync(small, 0))
ok(driver.cuMemPoolTrimTo(pool, 0))
assert ok(driver.cuMemGetInfo()) == (free, total)
assert driver.cuMemFreeAsync(small, 0)[0] is R.CUDA_ERROR_INVALID_VALUE
""",
    )
