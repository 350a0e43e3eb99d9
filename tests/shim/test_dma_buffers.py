"""DMA buffers hold physical memory as exported descriptors do.

Over tests/shim/c/dma_buffer_driver.c.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from contract import grant_file
from shim import region
from tests.shim.conftest import MIB, Host
from tests.shim.drivers import SOURCES, build_driver

pytestmark = pytest.mark.sim


@pytest.fixture
def dma_host(library: Path, tmp_path: Path) -> Host:
    build_driver(tmp_path, SOURCES / "dma_buffer_driver.c")
    return Host(library, tmp_path)


def test_a_dma_buffer_of_mapped_memory_keeps_its_charge_while_it_is_open(
    dma_host: Host, tmp_path: Path
) -> None:
    directory = tmp_path / "grant"
    directory.mkdir()
    region.create(directory, [grant_file.Card(f"GPU-{'aa' * 16}", 8 * MIB, 100, 0)])
    dma_host.python(
        f"""
import ctypes, os
from pathlib import Path
from shim import region
from cuda.bindings import driver as d
MIB, SIZE = {MIB}, ctypes.c_size_t
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
prop = d.CUmemAllocationProp()
prop.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
prop = ctypes.c_void_p(prop.getPtr())
def used():
    return region.status(Path(os.environ["GPUSLICE_DIR"]))[0].use.used_bytes
def create(bytes):
    handle = ctypes.c_uint64()
    return cuda.cuMemCreate(ctypes.byref(handle), SIZE(bytes), prop, ctypes.c_uint64()), handle
def buffer(kind=1):
    fd = ctypes.c_int()
    code = cuda.cuMemGetHandleForAddressRange(
        ctypes.byref(fd), at[0], SIZE(6 * MIB), kind, ctypes.c_uint64())
    return code, fd.value
at = [ctypes.c_uint64(address) for address in (1 << 40, (1 << 40) + 4 * MIB)]
for address, bytes in zip(at, (4 * MIB, 2 * MIB)):
    code, handle = create(bytes)
    assert code == 0
    assert cuda.cuMemMap(address, SIZE(bytes), SIZE(0), handle, ctypes.c_uint64()) == 0
    assert cuda.cuMemRelease(handle) == 0
assert buffer(kind=2)[0] == 1
code, fd = buffer()
assert code == 0
for address, bytes in zip(at, (4 * MIB, 2 * MIB)):
    assert cuda.cuMemUnmap(address, SIZE(bytes)) == 0
assert used() == 6 * MIB, used()
assert create(4 * MIB)[0] == 2
os.close(fd)
assert create(8 * MIB)[0] == 0
assert used() == 8 * MIB, used()
""",
        directory,
    )
