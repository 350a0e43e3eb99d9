"""Beginnings of test programs. Their functions compare the container's charge with the simulated
GPU's memory in use."""

from __future__ import annotations

from typing import Final

from tests.shim.clients import CUDA

WATCH: Final = """
import atexit, functools, json, os, socket
from pathlib import Path
from shim import region
def control(**request):
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.connect(os.environ["SIMGPU_DIR"] + "/control.sock")
        daemon.sendall(json.dumps(request).encode() + bytes([10]))
        return json.loads(daemon.makefile().readline())
def fail(call, code, count=1):
    "The driver fails the next calls of that function, until the program ends."
    fault = functools.partial(control, op="fail", gpu=0, call=call, code=code)
    atexit.register(fault, count=0)
    assert fault(count=count)["ok"]
def held(gpu=0):
    "What the gpu has given up, of all processes."
    return control(op="status")["gpus"][gpu]["used_bytes"]
def charged(gpu=0):
    return region.status(Path(os.environ["GPUSLICE_DIR"]))[gpu].use.used_bytes
"""
EXACT: Final = f"""{CUDA}{WATCH}
begun = held() - charged()
def same(bytes, gpu=0, begun=begun):
    "The gpu holds that much more than at the beginning, and all of it is charged."
    seen = held(gpu) - begun, charged(gpu)
    assert seen == (bytes, bytes), (seen, bytes)
compare = same
def after(answer, bytes, *gpu):
    "The call has succeeded, and then that much is held and charged."
    given = must(answer) if isinstance(answer, tuple) else answer
    compare(bytes, *gpu)
    return given
def refused(answer, bytes, code=OOM):
    "The call has failed by that code, and that much is held and charged, as before."
    assert answer[0] == code, answer
    compare(bytes)
"""
POOLS: Final = f"""{EXACT}
CHUNK = 32 * MIB
A = d.CUmemPool_attribute
POSIX = d.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
def properties(ordinal):
    p = d.CUmemPoolProps()
    p.allocType = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    p.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    p.location.id = ordinal
    return p
def new_pool(ordinal=0):
    return must(d.cuMemPoolCreate(properties(ordinal)))
def keep(pool, bytes):
    must(d.cuMemPoolSetAttribute(pool, A.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, d.cuuint64_t(bytes)))
def reserved(pool):
    return int(must(d.cuMemPoolGetAttribute(pool, A.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)))
def drop(*addresses):
    for address in addresses:
        must(d.cuMemFreeAsync(address, 0))
def sync():
    must(d.cuStreamSynchronize(0))
def drop_now(*addresses):
    drop(*addresses)
    sync()
default = must(d.cuDeviceGetDefaultMemPool(0))
"""
GRAPHS: Final = f"""{POOLS}
M = d.CUgraphMem_attribute
def graph_bytes(gpu=0):
    what = M.CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT
    return int(must(d.cuDeviceGetGraphMemAttribute(gpu, what)))
def new_graph():
    return must(d.cuGraphCreate(0))
def add_alloc(graph, size, gpu=0):
    p = d.CUDA_MEM_ALLOC_NODE_PARAMS()
    p.poolProps.allocType = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    p.poolProps.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    p.poolProps.location.id = gpu
    p.bytesize = size
    node = must(d.cuGraphAddMemAllocNode(graph, None, 0, p))
    return node, int(p.dptr)
def scratch(*sizes, gpu=0, graph=None):
    graph = graph or new_graph()
    for size in sizes:
        node, address = add_alloc(graph, size, gpu)
        must(d.cuGraphAddMemFreeNode(graph, [node], 1, address))
    return graph
def move_into(parent, child):
    p = d.CUgraphNodeParams()
    p.type = d.CUgraphNodeType.CU_GRAPH_NODE_TYPE_GRAPH
    p.graph.graph = child
    p.graph.ownership = d.CUgraphChildGraphNodeOwnership.CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE
    must(d.cuGraphAddNode(parent, None, None, 0, p))
def instantiate(graph, flags=0):
    return must(d.cuGraphInstantiate(graph, flags))
def launch(executable, stream=0):
    code = d.cuGraphLaunch(executable, stream)[0]
    must(d.cuStreamSynchronize(stream))
    return code
"""
PHYSICAL: Final = f"""{EXACT}
import ctypes, random
BLOCK = 2 * MIB
L, H = d.CUmemLocationType, d.CUmemAllocationHandleType
INVALID = d.CUresult.CUDA_ERROR_INVALID_VALUE
FD, NONE = H.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, H.CU_MEM_HANDLE_TYPE_NONE
def prop(ordinal=0, kind=L.CU_MEM_LOCATION_TYPE_DEVICE, shareable=NONE):
    p = d.CUmemAllocationProp()
    p.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    p.location.type, p.location.id, p.requestedHandleTypes = kind, ordinal, shareable
    return p
def create(bytes, **options):
    return must(d.cuMemCreate(bytes, prop(**options), 0))
def reserve(bytes):
    return int(must(d.cuMemAddressReserve(bytes, 0, 0, 0)))
def map(address, handle, bytes):
    must(d.cuMemMap(address, bytes, 0, handle, 0))
def unmap(address, bytes):
    must(d.cuMemUnmap(address, bytes))
def release(handle):
    must(d.cuMemRelease(handle))
def allow(address, bytes):
    a = d.CUmemAccessDesc()
    a.location.type, a.location.id = L.CU_MEM_LOCATION_TYPE_DEVICE, 0
    a.flags = d.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    must(d.cuMemSetAccess(address, bytes, [a], 1))
before = [(held(gpu), charged(gpu)) for gpu in range(len(
    region.status(Path(os.environ["GPUSLICE_DIR"]))))]
def took(bytes, gpu=0):
    "Since the beginning the gpu gave up that much, and all of it is charged."
    seen = held(gpu) - before[gpu][0], charged(gpu) - before[gpu][1]
    assert seen == (bytes, bytes), (seen, bytes)
compare = took
"""
SLOW: Final = """
import threading, time
from contextlib import contextmanager
@contextmanager
def slow(call, ms):
    "The driver waits so long before each such call."
    assert control(op="latency", gpu=0, call=call, ns=ms * 10**6)["ok"]
    try:
        yield
    finally:
        assert control(op="latency", gpu=0, call=call, ns=0)["ok"]
def beside(work):
    def run():
        use(0)
        work()
    thread = threading.Thread(target=run)
    thread.start()
    return thread
"""
SHAPE: Final = """
F = d.CUarray_format
def shape(width, height=0, depth=0, format=F.CU_AD_FORMAT_FLOAT, channels=1, flags=0):
    a = d.CUDA_ARRAY3D_DESCRIPTOR()
    a.Width, a.Height, a.Depth, a.Flags = width, height, depth, flags
    a.Format, a.NumChannels = format, channels
    return a
"""
CODE: Final = (
    EXACT
    + """
import ctypes
library = ctypes.CDLL("libcuda.so.1")
CONTEXT = 300 * MIB
def text(mib, local_bytes=0, entries=("entry",)):
    size = b"// simgpu: module_bytes=%d\\n" % (mib * MIB)
    local = b"// simgpu: local_bytes=%d\\n" % local_bytes if local_bytes else b""
    kernels = b"".join(b".visible .entry " + name.encode() + b"() { ret; }\\n" for name in entries)
    return b".version 8.0\\n.target sm_80\\n.address_size 64\\n" + size + local + kernels
def load(*args, **more):
    return must(d.cuModuleLoadData(text(*args, **more)))
def entry(module, name=b"entry"):
    return must(d.cuModuleGetFunction(module, name))
def run(function, stream=0):
    return d.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0)[0]
def kernel_params(function):
    p = d.CUDA_KERNEL_NODE_PARAMS()
    p.func = function
    p.gridDimX = p.gridDimY = p.gridDimZ = p.blockDimX = p.blockDimY = p.blockDimZ = 1
    return p
def exact(expected=None, gpu=0):
    assert held(gpu) == charged(gpu), (held(gpu) - charged(gpu), "are not charged")
    assert expected is None or charged(gpu) == expected, charged(gpu) / MIB
compare = exact
"""
)
