"""Stream-ordered memory under the library: the charge is what pools reserve, and no more.

Each test is a program in a process of its own. `same` compares the daemon's figure of the GPU with
the region's after each step: they must be equal.
"""

from __future__ import annotations

import pytest

from tests.shim.conftest import GIB, MIB, Limited
from tests.shim.exact import POOLS

pytestmark = pytest.mark.sim

BEGIN = POOLS


def test_row_12_async_and_pools(limited: Limited) -> None:
    limited(GIB)("""
small = [must(d.cuMemAllocAsync(1000, 0)) for _ in range(3)]
same(CHUNK)
large = must(d.cuMemAllocAsync(33 * MIB + 1, 0))
same(CHUNK + 34 * MIB)
pool = new_pool()
mine = must(d.cuMemAllocFromPoolAsync(100 * MIB, pool, 0))
same(CHUNK + 134 * MIB)
drop(large)
same(CHUNK + 134 * MIB)
sync()
same(CHUNK + 100 * MIB)
assert d.cuMemFreeAsync(large, 0)[0] == d.CUresult.CUDA_ERROR_INVALID_VALUE
must(d.cuMemFree(mine))
must(d.cuMemPoolTrimTo(pool, 0))
same(CHUNK)
drop(*small)
must(d.cuCtxSynchronize())
same(0)
""")


_PROGRAMS = {
    "async up to the limit exactly and not a byte more": """
full = must(d.cuMemAllocAsync(GIB, 0))
same(GIB)
for size in (1, MIB, GIB, 2**40, 2**63):
    assert d.cuMemAllocAsync(size, 0)[0] == OOM, size
    same(GIB)
assert d.cuMemAlloc(1)[0] == OOM
drop(full); sync()
same(0)
assert d.cuMemAllocAsync(GIB + 1, 0)[0] == OOM
assert d.cuMemAllocAsync(0, 0)[0] == d.CUresult.CUDA_ERROR_INVALID_VALUE
same(0)
""",
    "a chunk that does not fit is not taken": """
# The request fits, but not what the pool may take for it. Whether a piece of its memory would
# suffice is unknown, so that is refused as well, until the pool has a whole chunk to release.
first = must(d.cuMemAllocAsync(20 * MIB, 0))
same(CHUNK)
assert d.cuMemAllocAsync(20 * MIB, 0)[0] == OOM
same(CHUNK)
assert reserved(default) == CHUNK
assert d.cuMemAllocAsync(10 * MIB, 0)[0] == OOM
same(CHUNK)
drop(first)
must(d.cuMemAllocAsync(10 * MIB, 0))
same(CHUNK)
high = A.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH
assert int(must(d.cuMemPoolGetAttribute(default, high))) == CHUNK
""",
    "a shortage trims what the pools do not use": """
pool = new_pool()
for each in (default, pool):
    keep(each, 2**64 - 1)
half = must(d.cuMemAllocAsync(GIB // 2, 0))
drop(half); sync()
same(GIB // 2)
plain = must(d.cuMemAlloc(GIB))
same(GIB)
assert reserved(default) == 0
must(d.cuMemFree(plain))
other = must(d.cuMemAllocFromPoolAsync(GIB, pool, 0))
same(GIB)
drop(other); sync()
same(GIB)
must(d.cuMemAllocAsync(GIB, 0))
same(GIB)
""",
    "a destroyed pool is charged until its last allocation goes": """
pool = new_pool()
must(d.cuDeviceSetMemPool(0, pool))
first, second = (must(d.cuMemAllocAsync(64 * MIB, 0)) for _ in range(2))
assert reserved(pool) == 128 * MIB
must(d.cuMemPoolDestroy(pool))
assert int(must(d.cuDeviceGetMemPool(0))) == int(default)
same(128 * MIB)
drop(first); sync()
same(64 * MIB)
third = must(d.cuMemAllocAsync(MIB, 0))
assert reserved(default) == CHUNK
drop(second, third); sync()
same(0)
assert d.cuMemPoolTrimTo(pool, 0)[0] == d.CUresult.CUDA_ERROR_INVALID_VALUE
assert d.cuMemPoolDestroy(default)[0] == d.CUresult.CUDA_ERROR_INVALID_VALUE
empty = new_pool()
must(d.cuMemPoolDestroy(empty))
assert d.cuMemPoolDestroy(empty)[0] == d.CUresult.CUDA_ERROR_INVALID_VALUE
""",
    "memory of cuMemAlloc freed in a stream is refunded": """
for _ in range(3):
    address = must(d.cuMemAlloc(GIB))
    same(GIB)
    must(d.cuMemFreeAsync(address, 0))
    same(0)
""",
    "the entries for a stream per thread are metered as well": """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
address, size = ctypes.c_uint64(), ctypes.c_size_t
assert cuda.cuMemAllocAsync_ptsz(ctypes.byref(address), size(GIB), None) == 0
same(GIB)
assert cuda.cuMemAllocAsync_ptsz(ctypes.byref(address), size(1), None) == 2
pool = ctypes.c_void_p(int(default))
assert cuda.cuMemAllocFromPoolAsync_ptsz(ctypes.byref(address), size(1), pool, None) == 2
assert cuda.cuMemFreeAsync_ptsz(address, None) == 0
assert cuda.cuStreamSynchronize_ptsz(None) == 0
same(0)
assert cuda.cuMemAllocAsync_ptsz(None, size(1), None) == 1
assert cuda.cuMemAllocFromPoolAsync_ptsz(ctypes.byref(address), size(1), None, None) == 1
""",
    "what the driver refuses is not charged": """
for name, call in (
    ("cuMemAllocAsync", lambda: d.cuMemAllocAsync(100 * MIB, 0)),
    ("cuMemAllocFromPoolAsync", lambda: d.cuMemAllocFromPoolAsync(MIB, default, 0)),
):
    assert control(op="fail", gpu=0, call=name, code=999, count=1).get("ok"), name
    assert call()[0] == d.CUresult.CUDA_ERROR_UNKNOWN
    same(0)
address = must(d.cuMemAllocAsync(MIB, 0))
assert control(op="fail", gpu=0, call="cuMemFreeAsync", code=999, count=1).get("ok")
assert d.cuMemFreeAsync(address, 0)[0] == d.CUresult.CUDA_ERROR_UNKNOWN
plain = must(d.cuMemAlloc(2 * MIB))
assert control(op="fail", gpu=0, call="cuMemFreeAsync", code=999, count=1).get("ok")
assert d.cuMemFreeAsync(plain, 0)[0] == d.CUresult.CUDA_ERROR_UNKNOWN
same(CHUNK + 2 * MIB)
drop(address, plain); sync()
same(0)
""",
    "pools beyond what can be metered are not given": """
pools = []
while (made := d.cuMemPoolCreate(properties(0)))[0] == OK:
    pools.append(made[1])
assert made[0] == OOM and len(pools) == 1024, len(pools)
must(d.cuMemPoolDestroy(pools.pop()))
last = new_pool()
address = must(d.cuMemAllocFromPoolAsync(MIB, last, 0))
same(CHUNK)
drop(address); sync()
same(0)
""",
    "a pool of another gpu is charged to its own": """
# A default pool that was never used, through a stream of the other GPU.
use(1); begun1 = held(1) - charged(1); use(0)
far = must(d.cuDeviceGetDefaultMemPool(1))
must(d.cuMemAllocFromPoolAsync(256 * MIB, far, 0))
same(256 * MIB, 1, begun1); same(0)
assert d.cuMemAllocFromPoolAsync(1, far, 0)[0] == OOM
use(1)
assert d.cuMemAllocAsync(1, 0)[0] == OOM
""",
    "a reset forgets the current pool that held nothing": """
must(d.cuDeviceSetMemPool(0, new_pool()))
must(d.cuDevicePrimaryCtxReset(0))
use(0)
must(d.cuMemAllocAsync(GIB, 0))
same(GIB)
assert d.cuMemAllocAsync(MIB, 0)[0] == OOM
same(GIB)
""",
    "a pool that cannot be asked gives nothing": """
assert control(op="fail", gpu=0, call="cuMemPoolGetAttribute", code=999, count=1000).get("ok")
code = d.cuMemAllocAsync(MIB, 0)[0]
assert code == OOM, code
assert control(op="fail", gpu=0, call="cuMemPoolGetAttribute", code=999, count=0).get("ok")
sync()
same(0)
must(d.cuMemAllocAsync(MIB, 0))
same(CHUNK)
""",
    "what a pool gives while another is made current is charged": """
# The driver is slow, and a thread makes another pool current meanwhile.
import threading, time
must(d.cuMemAllocAsync(MIB, 0))
assert control(op="latency", gpu=0, call="cuMemAllocAsync", ns=400_000_000).get("ok")
def change():
    time.sleep(0.1)
    must(d.cuDeviceSetMemPool(0, new_pool()))
thread = threading.Thread(target=change); thread.start()
address = must(d.cuMemAllocAsync(GIB // 2, 0))
thread.join()
same(CHUNK + GIB // 2)
must(d.cuMemAllocAsync(MIB, 0))
same(2 * CHUNK + GIB // 2)
""",
    "threads that wait for a pool do not refuse one another": """
# The pool's memory serves them all, and one further chunk fits.
import threading
must(d.cuMemAllocAsync(MIB, 0)); must(d.cuMemAlloc(GIB - 2 * CHUNK))
assert control(op="latency", gpu=0, call="cuMemAllocAsync", ns=400_000_000).get("ok")
codes, together = [], threading.Barrier(4)
def take():
    use(0); together.wait()
    codes.append(d.cuMemAllocAsync(MIB, 0)[0])
threads = [threading.Thread(target=take) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert control(op="latency", gpu=0, call="cuMemAllocAsync", ns=0).get("ok")
assert codes == [OK] * 4, codes
same(GIB - CHUNK)
""",
    "managed and local pools are device memory": """
# A part of a device's memory is that device's; managed memory may go there.
L, T = d.CUmemLocationType, d.CUmemAllocationType
part, managed, both = properties(0), properties(0), properties(0)
part.location.type = L.CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN
part.location.id = 1 << 8
managed.location.type = L.CU_MEM_LOCATION_TYPE_NONE
managed.allocType = both.allocType = T.CU_MEM_ALLOCATION_TYPE_MANAGED
for wanted in (part, managed, both):
    pool = must(d.cuMemPoolCreate(wanted))
    address = must(d.cuMemAllocFromPoolAsync(GIB, pool, 0))
    same(GIB)
    assert d.cuMemAllocFromPoolAsync(1, pool, 0)[0] == OOM
    drop(address); sync()
    same(0)
""",
}
_LIMITS = {
    "a chunk that does not fit is not taken": (60 * MIB,),
    "a pool of another gpu is charged to its own": (GIB, 256 * MIB),
}


@pytest.mark.parametrize("name", _PROGRAMS)
def test_a_program_is_charged_what_its_pools_reserve(limited: Limited, name: str) -> None:
    """The figures of the GPU and of the region are equal after each step."""
    limited(*_LIMITS.get(name, (GIB,)))(_PROGRAMS[name])


_IMPORTER = f"""{BEGIN}
import ctypes, sys
pool = must(d.cuMemPoolImportFromShareableHandle(int(sys.argv[1]), POSIX, 0))
data = d.CUmemPoolPtrExportData()
ctypes.memmove(int(data.getPtr()), bytes.fromhex(sys.argv[2]), 64)
before = charged()
first = must(d.cuMemPoolImportPointer(pool, data))
assert charged() == before + 300 * MIB
sys.stdout.write("held\\n"); sys.stdout.flush()
sys.stdin.readline()
assert charged() == 300 * MIB, "the exporter is gone, the memory is not"
must(d.cuMemFreeAsync(first, 0)); sync()
assert charged() == 0
"""


def test_an_imported_allocation_is_charged_to_its_importer_too(limited: Limited) -> None:
    """The exporter may free it first, and the importer then holds it alone."""
    limited(800 * MIB)(f"""
import ctypes, subprocess, sys
p = d.CUmemPoolProps()
p.allocType = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
p.handleTypes = POSIX
p.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
pool = must(d.cuMemPoolCreate(p))
fd = int(must(d.cuMemPoolExportToShareableHandle(pool, POSIX, 0)))
os.set_inheritable(fd, True)
address = must(d.cuMemAllocFromPoolAsync(300 * MIB, pool, 0))
data = must(d.cuMemPoolExportPointer(address))
same(300 * MIB)
arguments = [str(fd), ctypes.string_at(int(data.getPtr()), 64).hex()]
child = subprocess.Popen([sys.executable, "-c", {_IMPORTER!r}, *arguments], close_fds=False,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
assert child.stdout.readline() == "held\\n"
assert charged() == 600 * MIB
must(d.cuMemFree(address))
must(d.cuMemPoolTrimTo(pool, 0))
assert reserved(pool) == 0
same(300 * MIB)
child.communicate("\\n")
assert child.returncode == 0
same(0)
""")
