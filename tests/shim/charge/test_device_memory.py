"""Device memory of cuMemAlloc and its variants: charged by the blocks that it lies in, and no more.

The region's figures are compared with the GPU's memory in use (exact.py) wherever both exist.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.shim.clients import NVML
from tests.shim.conftest import GIB, MIB, Grants, Limited, simulated
from tests.shim.exact import EXACT

pytestmark = pytest.mark.sim

BLOCK = 2 * MIB
BEGIN = f"""{EXACT}
BLOCK = 2 * MIB
def fault(entry, code, count):
    assert control(op="fail", gpu=0, call=entry, code=code, count=count)["ok"]
"""


def test_row_05_to_the_limit_exactly_and_not_a_byte_more(limited: Limited) -> None:
    limited(64 * MIB)("""
whole = must(d.cuMemAlloc(64 * MIB - BLOCK))
same(64 * MIB - BLOCK)
assert d.cuMemAlloc(BLOCK + 1)[0] == OOM
same(64 * MIB - BLOCK)
last = must(d.cuMemAlloc(BLOCK))
same(64 * MIB)
for size in (1, BLOCK, GIB, 2**63, 2**64 - 1):
    assert d.cuMemAlloc(size)[0] == OOM, size
    same(64 * MIB)
must(d.cuMemFree(last))
for size in (1, 512, MIB, BLOCK):
    must(d.cuMemFree(must(d.cuMemAlloc(size))))
    same(64 * MIB - BLOCK)
must(d.cuMemFree(whole))
same(0)
""")


_PROGRAMS = {
    "small allocations share a block and pay for it once": """
small = [must(d.cuMemAlloc(1 + i % 1000)) for i in range(2000)]
same(BLOCK)
large = must(d.cuMemAlloc(MIB))
same(2 * BLOCK)
for address in small[1:]:
    must(d.cuMemFree(address))
same(2 * BLOCK)
must(d.cuMemFree(large))
same(BLOCK)
must(d.cuMemFree(small[0]))
same(0)
""",
    "at the edge a block that is paid for is filled": """
# No further block fits; what the driver places in the last one costs nothing.
most = must(d.cuMemAlloc(6 * MIB))
small = [must(d.cuMemAlloc(MIB))]
same(8 * MIB)
small.append(must(d.cuMemAlloc(MIB // 2)))
small += [must(d.cuMemAlloc(512)) for _ in range(MIB // 2 // 512)]
same(8 * MIB)
for size in (512, MIB, BLOCK):
    assert d.cuMemAlloc(size)[0] == OOM, size
    same(8 * MIB)
for address in small:
    must(d.cuMemFree(address))
same(6 * MIB)
""",
    "two contexts share no block": """
first = must(d.cuMemAlloc(512))
second = must(d.cuCtxCreate(None, 0, 0))
begun = held() - charged() # what a context takes by itself is another test's
must(d.cuMemAlloc(512))
same(2 * BLOCK, begun=begun)
must(d.cuCtxDestroy(second))
same(BLOCK, begun=held() - charged())
must(d.cuMemFree(first))
assert charged() == 0, charged()
""",
    "a gpu outside the grant has no memory": """
assert must(d.cuDeviceGetCount()) == 2
assert must(d.cuDeviceTotalMem(1)) == 0
use(1)
assert must(d.cuMemGetInfo()) == (0, 0)
assert d.cuMemAlloc(1)[0] == OOM
use(0)
must(d.cuMemAlloc(64 * MIB))
""",
    "what is freed counts where it was allocated": """
use(1)
pointer = must(d.cuMemAlloc(64 * MIB))
assert d.cuMemAlloc(1)[0] == OOM
use(0)
must(d.cuMemFree(pointer))
assert must(d.cuMemGetInfo()) == (GIB, GIB)
use(1)
assert must(d.cuMemGetInfo()) == (64 * MIB, 64 * MIB)
""",
}
_LIMITS = {
    "what is freed counts where it was allocated": (GIB, 64 * MIB),
    "at the edge a block that is paid for is filled": (8 * MIB,),
    "two contexts share no block": (GIB,),
}


@pytest.mark.parametrize("name", _PROGRAMS)
def test_a_program_is_charged_the_blocks_of_its_memory(limited: Limited, name: str) -> None:
    """It is charged no more than that."""
    limited(*_LIMITS.get(name, (64 * MIB,)))(_PROGRAMS[name])


@pytest.mark.parametrize("limit_bytes", [GIB + 76, GIB - 1, 2 * MIB + 1, 2 * MIB - 1])
def test_what_is_called_free_can_be_allocated_at_once(limited: Limited, limit_bytes: int) -> None:
    """A third of a GPU is no whole number of blocks, the GPU's unit of allocation."""
    limited(limit_bytes)(f"""{NVML}
whole = {limit_bytes} // BLOCK * BLOCK
assert must(d.cuMemGetInfo()) == (whole, {limit_bytes})
assert pynvml.nvmlDeviceGetMemoryInfo(gpu(0)).free == whole
if whole:
    must(d.cuMemAlloc(whole))
assert d.cuMemAlloc(1)[0] == OOM
assert must(d.cuMemGetInfo()) == (0, {limit_bytes})
""")


def test_row_07_a_refusal_of_the_drivers_is_refunded(limited: Limited) -> None:
    limited(64 * MIB)("""
for code in (2, 719, 999):
    fault("cuMemAlloc_v2", code, 1)
    assert d.cuMemAlloc(10 * MIB)[0] == code
    same(0)
fault("cuMemAllocManaged", 2, 1)
assert d.cuMemAllocManaged(10 * MIB, 1)[0] == 2
fault("cuMemAllocPitch_v2", 2, 1)
assert d.cuMemAllocPitch(1000, 10, 4)[0] == 2
same(0)
must(d.cuMemAlloc(64 * MIB))
""")


def test_row_08_what_the_driver_did_not_free_stays_charged(limited: Limited) -> None:
    limited(64 * MIB)("""
small, large = must(d.cuMemAlloc(512)), must(d.cuMemAlloc(5 * MIB))
same(4 * BLOCK)
for address in (small, large):
    fault("cuMemFree_v2", 214, 2)
    for _ in range(2):
        assert d.cuMemFree(address)[0] == 214
        same(4 * BLOCK)
must(d.cuMemFree(small))
same(3 * BLOCK)
must(d.cuMemFree(large))
same(0)
assert d.cuMemFree(large)[0] == d.CUresult.CUDA_ERROR_INVALID_VALUE
same(0)
""")


def test_row_09_a_pointer_of_unknowns_reaches_the_driver(limited: Limited) -> None:
    limited(64 * MIB)("""
address = int(must(d.cuMemAlloc(4096)))
same(BLOCK)
for foreign in (address + 256, address + 512, address + BLOCK, 0xdead0000, 2**64 - 1):
    assert d.cuMemFree(foreign)[0] == d.CUresult.CUDA_ERROR_INVALID_VALUE, foreign
same(BLOCK)
must(d.cuMemFree(0))
must(d.cuMemFree(address))
same(0)
""")


def test_row_10_pitch_is_charged_as_the_driver_laid_it_out(limited: Limited) -> None:
    limited(64 * MIB)("""
address, pitch = must(d.cuMemAllocPitch(1, 100_000, 4))
assert pitch == 512
same(-(-100_000 * 512 // BLOCK) * BLOCK)
assert d.cuMemAllocPitch(1, 100_000, 4)[0] == OOM, "1 byte wide, 49 MiB tall"
must(d.cuMemFree(address))
small, _ = must(d.cuMemAllocPitch(100, 10, 16))
same(BLOCK)
for element in (0, 3, 32):
    assert d.cuMemAllocPitch(100, 10, element)[0] == d.CUresult.CUDA_ERROR_INVALID_VALUE
for shape in ((0, 10), (10, 0), (0, 0)):
    assert d.cuMemAllocPitch(*shape, 4)[0] == d.CUresult.CUDA_ERROR_INVALID_VALUE
assert d.cuMemAllocPitch(2**63, 4, 4)[0] == OOM
assert d.cuMemAllocPitch(2**64 - 1, 2, 4)[0] == d.CUresult.CUDA_ERROR_INVALID_VALUE
same(BLOCK)
must(d.cuMemFree(small))
same(0)
""")


def test_row_11_managed_memory_is_charged_in_full_and_stays_what_it_is(limited: Limited) -> None:
    limited(64 * MIB)("""
A = d.CUpointer_attribute
address = must(d.cuMemAllocManaged(33 * MIB, 1))
same(34 * MIB)
assert int(must(d.cuPointerGetAttribute(A.CU_POINTER_ATTRIBUTE_IS_MANAGED, address))) == 1
plural = must(d.cuPointerGetAttributes(1, [A.CU_POINTER_ATTRIBUTE_IS_MANAGED], address))
assert [int(one) for one in plural] == [1], plural
assert d.cuMemAllocManaged(31 * MIB, 1)[0] == OOM
assert d.cuMemAllocManaged(MIB, 7)[0] == d.CUresult.CUDA_ERROR_INVALID_VALUE
same(34 * MIB)
must(d.cuMemFree(address))
same(0)
""")


def test_row_17_host_memory_is_no_gpus(limited: Limited) -> None:
    """Host memory is neither charged nor refused because of a GPU's limit."""
    limited(4 * MIB)("""
must(d.cuMemAlloc(4 * MIB))
assert d.cuMemAlloc(1)[0] == OOM, "the gpu's share is full"
must(d.cuMemFreeHost(must(d.cuMemAllocHost(256 * MIB))))
must(d.cuMemFreeHost(must(d.cuMemHostAlloc(256 * MIB, 0))))
page = bytearray(8192)
must(d.cuMemHostRegister(page, 8192, 0))
must(d.cuMemHostUnregister(page))
same(4 * MIB)
""")


def test_what_exited_processes_hold_for_longer_is_refused_after_one_wait(
    build_dir: Path, library: Path, tmp_path: Path
) -> None:
    with simulated(build_dir, library, tmp_path, "teardown_delay_s = 60\n") as host:
        directory = Grants(tmp_path).make(4 * GIB)
        host.python(EXACT + "must(d.cuMemAlloc(4 * GIB))", directory)
        host.python(
            f"""{EXACT}
import time
waits = []
for _ in range(2):
    begun = time.monotonic()
    assert d.cuMemAlloc(4 * GIB)[0] == OOM
    waits.append(time.monotonic() - begun)
assert waits[1] < 5 < waits[0], waits
assert charged() == 0
""",
            directory,
        )


def test_a_new_container_waits_for_the_memory_of_the_one_before_it(
    build_dir: Path, library: Path, tmp_path: Path
) -> None:
    """A crashed server may be restarted while the GPU still holds its memory."""
    with simulated(build_dir, library, tmp_path, "teardown_delay_s = 3\n") as host:
        grants = Grants(tmp_path)
        host.python(EXACT + "must(d.cuMemAlloc(4 * GIB))", grants.make(4 * GIB))
        again = grants.make(4 * GIB, created_ns=time.monotonic_ns())
        host.python(EXACT + "must(d.cuMemAlloc(4 * GIB))", again)
