"""Rows of the matrix (test_matrix.py) on this machine's GPU. Some cannot be tested in simulation.

Each test runs a program whose limit is 1 GiB plus a context. The names begin with `test_gpu_`,
because each row must also have a test `test_row_NN_...` that runs on every machine.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager

import pytest

from tests.gpu.conftest import Gpu
from tests.gpu.programs import BEGIN, ON_GRAPHS, ON_PHYSICAL, VIEWS
from tests.shim.conftest import MIB, used
from tests.shim.exact import SHAPE
from tests.support import until
from tests.talking import TALKER, Talk, talkers, talking

pytestmark = pytest.mark.sim
OUT_OF_MEMORY = "2"


def _talkers(gpu: Gpu, count: int) -> AbstractContextManager[list[Talk]]:
    return talkers(*[gpu.host.environment(gpu.grant_dir)] * count)


_IMPORTER = (
    ON_PHYSICAL
    + """
import socket, sys
peer = socket.socket(fileno=int(sys.argv[1]))
print("ready", flush=True)
fd = socket.recv_fds(peer, 1, 1)[1][0]
handle = must(d.cuMemImportFromShareableHandle(fd, FD))
at = reserve(64 * MIB)
map(at, handle, 64 * MIB); allow(at, 64 * MIB)
must(d.cuMemsetD8(at, 1, 64 * MIB))
print("imported", flush=True)
peer.recv(1)
"""
)
ROWS = {
    "05 to the limit exactly": BEGIN
    + """
whole = must(d.cuMemAlloc(free_bytes - BLOCK))
took(free_bytes - BLOCK)
assert d.cuMemAlloc(BLOCK + 1)[0] == OOM
took(free_bytes - BLOCK)
last = must(d.cuMemAlloc(BLOCK))
took(free_bytes)
for size in (BLOCK, GIB, 2**63, 2**64 - 1):
    assert d.cuMemAlloc(size)[0] == OOM, size
agrees("full")
must(d.cuMemFree(last)); must(d.cuMemFree(whole))
took(0)
""",
    "10 pitch": BEGIN
    + """
for width, height, element in ((1, 100_000, 4), (4096, 4096, 16), (5000, 3001, 8)):
    address, pitch = must(d.cuMemAllocPitch(width, height, element))
    assert agrees(f"pitch {pitch} for {width}") >= pitch * height
    must(d.cuMemFree(address))
    took(0)
assert d.cuMemAllocPitch(100, 100, 0)[0] == INVALID
""",
    # Managed memory is charged at its creation. The GPU allocates each page at the first use.
    "11 managed": BEGIN
    + """
address = must(d.cuMemAllocManaged(256 * MIB, 1))
assert charged() == account.opened_at + 256 * MIB
what = d.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED
assert must(d.cuPointerGetAttribute(what, address))
assert d.cuMemAllocManaged(free_bytes, 1)[0] == OOM
must(d.cuMemFree(address))
took(0)
""",
    "12 async and pools": ON_GRAPHS
    + """
few = [must(d.cuMemAllocAsync(1000, 0)) for _ in range(3)]
large = must(d.cuMemAllocAsync(100 * MIB, 0))
took(reserved(default))
agrees("the default pool")
pool = new_pool()
mine = must(d.cuMemAllocFromPoolAsync(200 * MIB, pool, 0))
took(reserved(default) + reserved(pool))
assert d.cuMemAllocAsync(free_bytes, 0)[0] == OOM
must(d.cuMemFree(mine)) # synchronous, of memory that a stream ordered
drop(large, *few); sync()
must(d.cuMemPoolTrimTo(pool, 0)); must(d.cuMemPoolTrimTo(default, 0))
took(reserved(default) + reserved(pool))
must(d.cuMemPoolDestroy(pool))
took(reserved(default))
""",
    "13 physical memory": ON_PHYSICAL
    + """
at = reserve(4 * GIB)
handle = create(20 * MIB)
took(20 * MIB)
map(at, handle, 20 * MIB); allow(at, 20 * MIB); release(handle)
took(20 * MIB)
again = must(d.cuMemRetainAllocationHandle(at))
unmap(at, 20 * MIB)
took(20 * MIB)
release(again)
took(0)
got = 0
while got < 20:
    code, handle = d.cuMemCreate(200 * MIB, prop(), 0)
    if code == OOM:
        break
    map(at + got * 200 * MIB, handle, 200 * MIB); release(handle)
    got += 1
assert got == free_bytes // (200 * MIB), got
took(got * 200 * MIB)
for each in range(got):
    unmap(at + each * 200 * MIB, 200 * MIB)
took(0)
""",
    # The overhead is correct only if neither NVML nor the library counts memory for its importer.
    "13 exported and imported": ON_PHYSICAL
    + f"IMPORTER = {_IMPORTER!r}\n"
    + """
import socket, subprocess, sys
ours, theirs = socket.socketpair()
importer = subprocess.Popen([sys.executable, "-c", IMPORTER, str(theirs.fileno())],
                            pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, text=True)
assert importer.stdout.readline() == "ready\\n"
contexts = charged()
mine = create(64 * MIB, shareable=FD)
fd = int(must(d.cuMemExportToShareableHandle(mine, FD, 0)))
other = account.held_by(importer.pid)
socket.send_fds(ours, [b"x"], [fd])
os.close(fd)
assert importer.stdout.readline() == "imported\\n"
assert charged() - contexts == 64 * MIB, charged()
counted = account.held_by(importer.pid) - other
assert counted == 0, f"NVML counts an import of {64 * MIB} bytes as {counted} of the importer's"
release(mine)
assert charged() - contexts == 64 * MIB, "the importer has it"
ours.send(b"x")
importer.wait()
must(d.cuMemGetInfo())
took(0)
""",
    "14 arrays": ON_PHYSICAL
    + SHAPE
    + """
SHAPES = [
    ("1D", shape(16384, channels=4)),  # some drivers accept no wider one with mipmaps
    ("2D", shape(4096, 4096)),
    ("2D, bytes", shape(1920, 1080, format=F.CU_AD_FORMAT_UNSIGNED_INT8, channels=4)),
    ("3D", shape(200, 300, 90)),
    ("layered", shape(1000, 1000, 5, flags=1)),
    ("cube", shape(512, 512, 6, flags=4)),
]
for name, made in SHAPES:
    arrays = [must(d.cuArray3DCreate(made)) for _ in range(4)]
    agrees(name)
    for array in arrays:
        must(d.cuArrayDestroy(array))
    took(0)
    mipmap = must(d.cuMipmappedArrayCreate(made, 4))
    agrees(f"{name}, mipmapped")
    must(d.cuMipmappedArrayDestroy(mipmap))
    took(0)
made = []
while len(made) < 100:
    code, array = d.cuArray3DCreate(shape(4096, 4096))
    if code == OOM:
        break
    assert code == OK
    made.append(array)
assert 0 < len(made) < 17
agrees("arrays up to the limit")
""",
    "15 graph memory": ON_GRAPHS
    + """
executable = instantiate(scratch(300 * MIB, 200 * MIB))
for _ in range(3):
    assert launch(executable) == OK
    took(graph_bytes())
assert launch(instantiate(scratch(free_bytes + BLOCK))) == OOM
must(d.cuGraphExecDestroy(executable))
must(d.cuDeviceGraphMemTrim(0))
took(graph_bytes())
agrees("after the trim")
""",
}


@pytest.mark.parametrize("row", ROWS)
def test_gpu_row(gpu: Gpu, row: str) -> None:
    gpu.python(ROWS[row])


def test_gpu_row_16_ipc_is_charged_once(gpu: Gpu) -> None:
    with _talkers(gpu, 2) as (exporter, importer):
        before = used(gpu.grant_dir)
        assert exporter.ask(f"alloc {100 * MIB}") == "0 0"
        code, handle = exporter.ask("export 0").split()
        if code != "0":
            pytest.skip(f"this machine's driver exports nothing: {code}")
        assert importer.ask(f"open {handle}") == "0 0"
        assert used(gpu.grant_dir) == before + 100 * MIB
        assert importer.ask("close 0") == "0"
        assert exporter.ask("free 0") == "0"
        assert used(gpu.grant_dir) == before


def test_gpu_row_19_a_killed_holders_memory(gpu: Gpu) -> None:
    with _talkers(gpu, 2) as (holder, other):
        size = (gpu.limit_bytes - used(gpu.grant_dir)) // (2 * MIB) * 2 * MIB
        assert holder.ask(f"alloc {size}") == "0 0"
        assert other.ask(f"alloc {size}") == OUT_OF_MEMORY
        holder.kill()
        assert other.ask(f"alloc {size}") == "0 0", "at once, or after the library's own retries"
        until(
            lambda: used(gpu.grant_dir) < gpu.limit_bytes, "the end of the killed process's charge"
        )


def test_gpu_row_27_the_limit_follows_the_gpu(gpu: Gpu) -> None:
    number = os.environ["GPUSLICE_GPU"]
    for visible in (gpu.facts.uuid, gpu.facts.uuid[:-1], number):
        for first, second in (("by_nvml", "by_cuda"), ("by_cuda", "by_nvml")):
            program = (
                f"import os\nos.environ['CUDA_VISIBLE_DEVICES'] = {visible!r}\n"
                f"os.environ['CUDA_DEVICE_ORDER'] = 'PCI_BUS_ID'\nUUID = {gpu.facts.uuid!r}"
                f"{VIEWS}print({first}()[0], {second}()[0])"
            )
            assert gpu.python(program).stdout.split() == [str(gpu.limit_bytes)] * 2, visible


def test_gpu_row_29_every_view_agrees(gpu: Gpu) -> None:
    gpu.python(
        BEGIN
        + f"UUID = {gpu.facts.uuid!r}{VIEWS}"
        + """
address = must(d.cuMemAlloc(512 * MIB))
assert by_cuda() == by_nvml(), (by_cuda(), by_nvml())
assert by_cuda()[1] == charged()
"""
    )


def test_gpu_row_30_only_own_processes_are_listed(gpu: Gpu) -> None:
    """A process outside the container uses the GPU, and the container's NVML does not list it."""
    neighbour = talking(TALKER, gpu.host.environment(preload=False))
    with neighbour as theirs, _talkers(gpu, 1) as [ours]:
        said = gpu.python(
            f"""
import pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByUUID({gpu.facts.uuid!r})
print(*(process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)))
"""
        ).stdout.split()
        assert str(theirs.pid) not in said
        assert set(said) <= {str(ours.pid)}
