"""The null driver: the answers of a driver without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.sim

_PROGRAM = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
MIB, OUT_OF_MEMORY, INVALID = 2**20, 2, 1
context = ctypes.c_void_p()
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
def take(size):
    address = ctypes.c_uint64()
    code = cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
    return address.value if code == 0 else -code
def give(address):
    return cuda.cuMemFree_v2(ctypes.c_uint64(address))
def free():
    left, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert cuda.cuMemGetInfo_v2(ctypes.byref(left), ctypes.byref(total)) == 0
    return left.value
held = [take(size) for size in (2 * MIB + 1, 1)]
assert free() == 2 * MIB
assert take(2 * MIB + 1) == -OUT_OF_MEMORY
held += [take(2 * MIB)] + [take(512) for _ in range(4095)]
assert take(1) == -OUT_OF_MEMORY
assert len({*held}) == len(held) and all(address % 512 == 0 for address in held)
assert len({address >> 21 for address in held}) == 3
for address in held:
    assert give(address + 256) == INVALID
    assert give(address) == 0
    assert give(address) == INVALID
assert free() == 8 * MIB
assert take(0) == -INVALID
"""


def test_fills_and_empties(build_dir: Path) -> None:
    environ = {"LD_LIBRARY_PATH": str(build_dir / "lib/null"), "NULL_DRIVER_BYTES": str(8 << 20)}
    command = [sys.executable, "-c", _PROGRAM]
    subprocess.run(command, env={**os.environ, **environ}, check=True)
