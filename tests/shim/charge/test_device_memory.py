"""Device memory of cuMemAlloc and its variants is charged by the blocks that contain it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.shim.clients import NVML
from tests.shim.conftest import GIB, MIB, Grants, Limited, simulated
from tests.shim.exact import EXACT

pytestmark = pytest.mark.sim

BEGIN = f"""{EXACT}
BLOCK = 2 * MIB
INVALID = d.CUresult.CUDA_ERROR_INVALID_VALUE
"""


def test_row_05_to_the_limit_exactly_and_not_a_byte_more(limited: Limited) -> None:
    limited(64 * MIB)("""
whole = after(d.cuMemAlloc(64 * MIB - BLOCK), 64 * MIB - BLOCK)
refused(d.cuMemAlloc(BLOCK + 1), 64 * MIB - BLOCK)
last = after(d.cuMemAlloc(BLOCK), 64 * MIB)
for size in (1, BLOCK, GIB, 2**63, 2**64 - 1):
    refused(d.cuMemAlloc(size), 64 * MIB)
must(d.cuMemFree(last))
for size in (1, 512, MIB, BLOCK):
    after(d.cuMemFree(must(d.cuMemAlloc(size))), 64 * MIB - BLOCK)
after(d.cuMemFree(whole), 0)
""")


_PROGRAMS = {
    "small allocations share a block and pay for it once": """
first, *others = [must(d.cuMemAlloc(1 + i % 1000)) for i in range(2000)]
same(BLOCK)
large = after(d.cuMemAlloc(MIB), 2 * BLOCK)
for address in others:
    must(d.cuMemFree(address))
after(d.cuMemFree(large), BLOCK)
after(d.cuMemFree(first), 0)
""",
    "at the edge a block that is paid for is filled": """
# No further block fits under the limit. Allocations within an already charged block still fit.
most = must(d.cuMemAlloc(6 * MIB))
small = [after(d.cuMemAlloc(MIB), 8 * MIB), must(d.cuMemAlloc(MIB // 2))]
small += [must(d.cuMemAlloc(512)) for _ in range(MIB // 2 // 512)]
same(8 * MIB)
for size in (512, MIB, BLOCK):
    refused(d.cuMemAlloc(size), 8 * MIB)
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
    limited(*_LIMITS.get(name, (64 * MIB,)))(_PROGRAMS[name])


@pytest.mark.parametrize("limit_bytes", [GIB + 76, GIB - 1, 2 * MIB + 1, 2 * MIB - 1])
def test_what_is_called_free_can_be_allocated_at_once(limited: Limited, limit_bytes: int) -> None:
    """A limit, for example a third of a GPU, need not be a whole number of blocks."""
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
    fail("cuMemAlloc_v2", code)
    refused(d.cuMemAlloc(10 * MIB), 0, code)
fail("cuMemAllocManaged", 2)
refused(d.cuMemAllocManaged(10 * MIB, 1), 0)
fail("cuMemAllocPitch_v2", 2)
refused(d.cuMemAllocPitch(1000, 10, 4), 0)
must(d.cuMemAlloc(64 * MIB))
""")


def test_row_08_what_the_driver_did_not_free_stays_charged(limited: Limited) -> None:
    limited(64 * MIB)("""
small, large = must(d.cuMemAlloc(512)), after(d.cuMemAlloc(5 * MIB), 4 * BLOCK)
for address in (small, large):
    fail("cuMemFree_v2", 214, 2)
    for _ in range(2):
        refused(d.cuMemFree(address), 4 * BLOCK, 214)
after(d.cuMemFree(small), 3 * BLOCK)
after(d.cuMemFree(large), 0)
refused(d.cuMemFree(large), 0, INVALID)
""")


def test_row_09_a_pointer_of_unknowns_reaches_the_driver(limited: Limited) -> None:
    limited(64 * MIB)("""
address = int(after(d.cuMemAlloc(4096), BLOCK))
for foreign in (address + 256, address + 512, address + BLOCK, 0xdead0000, 2**64 - 1):
    refused(d.cuMemFree(foreign), BLOCK, INVALID)
must(d.cuMemFree(0))
after(d.cuMemFree(address), 0)
""")


def test_row_10_pitch_is_charged_as_the_driver_laid_it_out(limited: Limited) -> None:
    limited(64 * MIB)("""
address, pitch = after(d.cuMemAllocPitch(1, 100_000, 4), -(-100_000 * 512 // BLOCK) * BLOCK)
assert pitch == 512
assert d.cuMemAllocPitch(1, 100_000, 4)[0] == OOM, "1 byte wide, 49 MiB tall"
must(d.cuMemFree(address))
small, _ = after(d.cuMemAllocPitch(100, 10, 16), BLOCK)
refused(d.cuMemAllocPitch(100, 10, 0), BLOCK, INVALID)
refused(d.cuMemAllocPitch(2**63, 4, 4), BLOCK)
after(d.cuMemFree(small), 0)
""")


def test_row_11_managed_memory_is_charged_in_full_and_stays_what_it_is(limited: Limited) -> None:
    limited(64 * MIB)("""
A = d.CUpointer_attribute
address = after(d.cuMemAllocManaged(33 * MIB, 1), 34 * MIB)
assert int(must(d.cuPointerGetAttribute(A.CU_POINTER_ATTRIBUTE_IS_MANAGED, address))) == 1
plural = must(d.cuPointerGetAttributes(1, [A.CU_POINTER_ATTRIBUTE_IS_MANAGED], address))
assert [int(one) for one in plural] == [1], plural
refused(d.cuMemAllocManaged(31 * MIB, 1), 34 * MIB)
after(d.cuMemFree(address), 0)
""")


def test_row_17_host_memory_is_no_gpus(limited: Limited) -> None:
    limited(4 * MIB)("""
must(d.cuMemAlloc(4 * MIB))
assert d.cuMemAlloc(1)[0] == OOM, "the gpu's share is full"
must(d.cuMemFreeHost(must(d.cuMemAllocHost(256 * MIB))))
must(d.cuMemFreeHost(must(d.cuMemHostAlloc(256 * MIB, 0))))
page = bytearray(8192)
must(d.cuMemHostRegister(page, 8192, 0))
after(d.cuMemHostUnregister(page), 4 * MIB)
""")


_FILL = EXACT + "must(d.cuMemAlloc(4 * GIB))"
_REFUSED_TWICE = f"""{EXACT}
import time
waits = []
for _ in range(2):
    began = time.monotonic()
    refused(d.cuMemAlloc(4 * GIB), 0)
    waits.append(time.monotonic() - began)
assert waits[1] < 5 < waits[0], waits
"""


def test_what_exited_processes_hold_for_longer_is_refused_after_one_wait(
    build_dir: Path, library: Path, tmp_path: Path
) -> None:
    with simulated(build_dir, library, tmp_path, "teardown_delay_s = 60\n") as host:
        directory = Grants(tmp_path).make(4 * GIB)
        host.python(_FILL, directory)
        host.python(_REFUSED_TWICE, directory)


def test_a_new_container_waits_for_the_memory_of_the_one_before_it(
    build_dir: Path, library: Path, tmp_path: Path
) -> None:
    """A crashed server may be restarted while the GPU still holds the crashed process's memory."""
    with simulated(build_dir, library, tmp_path, "teardown_delay_s = 3\n") as host:
        grants = Grants(tmp_path)
        host.python(_FILL, grants.make(4 * GIB))
        host.python(_FILL, grants.make(4 * GIB, created_ns=time.monotonic_ns()))
