"""Stream-ordered memory is charged as many bytes as its pools reserve, and no more."""

from __future__ import annotations

import pytest

from tests.shim.conftest import GIB, MIB, Limited
from tests.shim.exact import POOLS, SLOW

pytestmark = pytest.mark.sim

BEGIN = f"""{POOLS}{SLOW}
import ctypes, subprocess, sys
R = d.CUresult
"""


def test_row_12_async_and_pools(limited: Limited) -> None:
    limited(GIB)("""
small = [after(d.cuMemAllocAsync(1000, 0), CHUNK) for _ in range(3)]
large = after(d.cuMemAllocAsync(33 * MIB + 1, 0), CHUNK + 34 * MIB)
pool = new_pool()
mine = after(d.cuMemAllocFromPoolAsync(100 * MIB, pool, 0), CHUNK + 134 * MIB)
after(drop(large), CHUNK + 134 * MIB)
after(sync(), CHUNK + 100 * MIB)
assert d.cuMemFreeAsync(large, 0)[0] == R.CUDA_ERROR_INVALID_VALUE
must(d.cuMemFree(mine))
after(d.cuMemPoolTrimTo(pool, 0), CHUNK)
drop(*small)
after(d.cuCtxSynchronize(), 0)
""")


_PROGRAMS = {
    "async up to the limit exactly and not a byte more": """
full = after(d.cuMemAllocAsync(GIB, 0), GIB)
for size in (1, GIB, 2**63):
    refused(d.cuMemAllocAsync(size, 0), GIB)
assert d.cuMemAlloc(1)[0] == OOM
after(drop_now(full), 0)
refused(d.cuMemAllocAsync(GIB + 1, 0), 0)
""",
    "a chunk that does not fit is not taken": """
# 10 MiB fit under the limit, but the pool may take a whole chunk for them, which does not fit. The
# library cannot know whether the pool has a large enough piece. So it refuses the allocation.
first = after(d.cuMemAllocAsync(20 * MIB, 0), CHUNK)
refused(d.cuMemAllocAsync(20 * MIB, 0), CHUNK)
assert reserved(default) == CHUNK
refused(d.cuMemAllocAsync(10 * MIB, 0), CHUNK)
drop(first)
after(d.cuMemAllocAsync(10 * MIB, 0), CHUNK)
""",
    "a shortage trims what the pools do not use": """
pool = new_pool()
for each in (default, pool):
    keep(each, 2**64 - 1)
half = must(d.cuMemAllocAsync(GIB // 2, 0))
after(drop_now(half), GIB // 2)
plain = after(d.cuMemAlloc(GIB), GIB)
assert reserved(default) == 0
must(d.cuMemFree(plain))
other = after(d.cuMemAllocFromPoolAsync(GIB, pool, 0), GIB)
after(drop_now(other), GIB)
after(d.cuMemAllocAsync(GIB, 0), GIB)
""",
    "a destroyed pool is charged until its last allocation goes": """
pool = new_pool()
must(d.cuDeviceSetMemPool(0, pool))
first, second = (must(d.cuMemAllocAsync(64 * MIB, 0)) for _ in range(2))
assert reserved(pool) == 128 * MIB
must(d.cuMemPoolDestroy(pool))
assert int(must(d.cuDeviceGetMemPool(0))) == int(default)
same(128 * MIB)
after(drop_now(first), 64 * MIB)
third = must(d.cuMemAllocAsync(MIB, 0))
assert reserved(default) == CHUNK
after(drop_now(second, third), 0)
for each in (default, pool):
    refused(d.cuMemPoolDestroy(each), 0, R.CUDA_ERROR_INVALID_VALUE)
""",
    "the entries for a stream per thread are metered as well": """
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
    "memory is refunded at the synchronization that returns it": """
# The first synchronization is of another stream, and comes before the free is done.
PTX = b".version 8.0\\n.target sm_80\\n.address_size 64\\n// simgpu: duration_ns=300000000\\n" \\
      b".visible .entry slow() { ret; }\\n"
kernel = must(d.cuModuleGetFunction(must(d.cuModuleLoadData(PTX)), b"slow"))
busy, idle = (must(d.cuStreamCreate(1)) for _ in range(2))
address = must(d.cuMemAllocAsync(100 * MIB, busy))
must(d.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, busy, 0, 0))
must(d.cuMemFreeAsync(address, busy))
after(d.cuStreamSynchronize(idle), 100 * MIB)
after(d.cuStreamSynchronize(busy), 0)
""",
    "what the driver refuses is not charged": """
fail("cuMemAllocAsync", 999)
refused(d.cuMemAllocAsync(100 * MIB, 0), 0, R.CUDA_ERROR_UNKNOWN)
fail("cuMemAllocFromPoolAsync", 999)
refused(d.cuMemAllocFromPoolAsync(MIB, default, 0), 0, R.CUDA_ERROR_UNKNOWN)
address, plain = must(d.cuMemAllocAsync(MIB, 0)), must(d.cuMemAlloc(2 * MIB))
for each in (address, plain):
    fail("cuMemFreeAsync", 999)
    refused(d.cuMemFreeAsync(each, 0), CHUNK + 2 * MIB, R.CUDA_ERROR_UNKNOWN)
after(drop_now(address, plain), 0)
""",
    "pools beyond what can be metered are not given": """
pools = []
while (made := d.cuMemPoolCreate(properties(0)))[0] == OK:
    pools.append(made[1])
assert made[0] == OOM and len(pools) == 1024, len(pools)
must(d.cuMemPoolDestroy(pools.pop()))
address = after(d.cuMemAllocFromPoolAsync(MIB, new_pool(), 0), CHUNK)
after(drop_now(address), 0)
""",
    "a pool of another gpu is charged to its own": """
# Allocate from a default pool that was never used, through a stream of the other GPU.
use(1)
begun1 = held(1) - charged(1)
use(0)
near = after(d.cuMemAllocAsync(MIB, 0), CHUNK)
use(1)
drop_now(after(d.cuMemAllocAsync(MIB, 0), CHUNK, 1, begun1))
use(0)
drop_now(near)
far = must(d.cuDeviceGetDefaultMemPool(1))
after(d.cuMemAllocFromPoolAsync(256 * MIB, far, 0), 256 * MIB, 1, begun1)
refused(d.cuMemAllocFromPoolAsync(1, far, 0), 0)
use(1)
assert d.cuMemAllocAsync(1, 0)[0] == OOM
""",
    "a reset forgets the current pool that held nothing": """
must(d.cuDeviceSetMemPool(0, new_pool()))
must(d.cuDevicePrimaryCtxReset(0))
use(0)
after(d.cuMemAllocAsync(GIB, 0), GIB)
refused(d.cuMemAllocAsync(MIB, 0), GIB)
""",
    "a pool that cannot be asked gives nothing": """
fail("cuMemPoolGetAttribute", 999, 1000)
code = d.cuMemAllocAsync(MIB, 0)[0]
assert code == OOM, code
fail("cuMemPoolGetAttribute", 999, 0)
after(sync(), 0)
after(d.cuMemAllocAsync(MIB, 0), CHUNK)
""",
    "what a pool gives while another is made current is charged": """
# While the driver allocates, another thread makes another pool the current pool.
must(d.cuMemAllocAsync(MIB, 0))
def change():
    time.sleep(0.1)
    must(d.cuDeviceSetMemPool(0, new_pool()))
with slow("cuMemAllocAsync", 400):
    thread = beside(change)
    must(d.cuMemAllocAsync(GIB // 2, 0))
    thread.join()
same(CHUNK + GIB // 2)
after(d.cuMemAllocAsync(MIB, 0), 2 * CHUNK + GIB // 2)
""",
    "what a pool holds in pieces is no reason to ask for more": """
# Half of the pool is unused, but no piece is large enough. The pool must not grow, even briefly.
pool = new_pool()
keep(pool, 2**40)
pieces = [must(d.cuMemAllocFromPoolAsync(16 * MIB, pool, 0)) for _ in range(14)]
drop_now(*pieces[::2])
ended, most = threading.Event(), [0]
def watch():
    while not ended.is_set():
        most[0] = max(most[0], held() - begun)
with slow("cuMemPoolGetAttribute", 300):
    watcher = beside(watch)
    refused(d.cuMemAllocFromPoolAsync(112 * MIB, pool, 0), 224 * MIB)
ended.set()
watcher.join()
assert most[0] == 224 * MIB, most[0] / MIB
after(d.cuMemAllocFromPoolAsync(16 * MIB, pool, 0), 224 * MIB)
""",
    "threads that wait for a pool do not refuse one another": """
# The pool has enough memory for all four threads. Only one further chunk fits under the limit.
must(d.cuMemAllocAsync(MIB, 0))
must(d.cuMemAlloc(GIB - 2 * CHUNK))
codes, together = [], threading.Barrier(4)
def take():
    together.wait()
    codes.append(d.cuMemAllocAsync(MIB, 0)[0])
with slow("cuMemAllocAsync", 400):
    for thread in [beside(take) for _ in range(4)]:
        thread.join()
assert codes == [OK] * 4, codes
same(GIB - CHUNK)
""",
    "managed and local pools are device memory": """
# Memory in a part of a GPU is charged to the GPU. So is managed memory, which may move to the GPU.
L, T = d.CUmemLocationType, d.CUmemAllocationType
part, managed, both = properties(0), properties(0), properties(0)
part.location.type = L.CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN
part.location.id = 1 << 8
managed.location.type = L.CU_MEM_LOCATION_TYPE_NONE
managed.allocType = both.allocType = T.CU_MEM_ALLOCATION_TYPE_MANAGED
for wanted in (part, managed, both):
    pool = must(d.cuMemPoolCreate(wanted))
    address = after(d.cuMemAllocFromPoolAsync(GIB, pool, 0), GIB)
    assert d.cuMemAllocFromPoolAsync(1, pool, 0)[0] == OOM
    after(drop_now(address), 0)
""",
}
_LIMITS = {
    "a chunk that does not fit is not taken": (60 * MIB,),
    "a pool of another gpu is charged to its own": (GIB, 256 * MIB),
    "what a pool holds in pieces is no reason to ask for more": (256 * MIB,),
}


@pytest.mark.parametrize("name", _PROGRAMS)
def test_a_program_is_charged_what_its_pools_reserve(limited: Limited, name: str) -> None:
    limited(*_LIMITS.get(name, (GIB,)))(_PROGRAMS[name])


_IMPORTER = f"""{BEGIN}
pool = must(d.cuMemPoolImportFromShareableHandle(int(sys.argv[1]), POSIX, 0))
data = d.CUmemPoolPtrExportData()
ctypes.memmove(int(data.getPtr()), bytes.fromhex(sys.argv[2]), 64)
first = must(d.cuMemPoolImportPointer(pool, data))
print(charged() // MIB, flush=True)
sys.stdin.readline()
assert charged() == 300 * MIB, "the exporter is gone, the memory is not"
drop_now(first)
assert charged() == 0
"""


def test_an_imported_allocation_is_charged_to_its_importer_too(limited: Limited) -> None:
    """The exporter may free the allocation first, and then only the importer holds it."""
    limited(800 * MIB)(f"""
exported = properties(0)
exported.handleTypes = POSIX
pool = must(d.cuMemPoolCreate(exported))
fd = int(must(d.cuMemPoolExportToShareableHandle(pool, POSIX, 0)))
os.set_inheritable(fd, True)
address = after(d.cuMemAllocFromPoolAsync(300 * MIB, pool, 0), 300 * MIB)
data = must(d.cuMemPoolExportPointer(address))
arguments = [str(fd), ctypes.string_at(int(data.getPtr()), 64).hex()]
child = subprocess.Popen([sys.executable, "-c", {_IMPORTER!r}, *arguments], close_fds=False,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
assert child.stdout.readline() == "600\\n"
must(d.cuMemFree(address))
must(d.cuMemPoolTrimTo(pool, 0))
same(300 * MIB)
child.communicate("\\n")
assert child.returncode == 0
same(0)
""")
