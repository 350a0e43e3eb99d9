"""The simulated GPU's accounting: stream-ordered, graph, physical and array memory.

Run as `python -m tests.simgpu.programs.memory_programs NAME`. The shim's tests compare the
library's charges with these figures, so this file compares them with NVIDIA's documentation.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from typing import Any, Final

from cuda.bindings import driver

from tests.simgpu.programs.cuda_calls import PTX, R, begin, free_bytes, ok
from tests.support import MIB

CHUNK: Final = 32 * MIB
A: Final = driver.CUmemPool_attribute
G: Final = driver.CUgraphMem_attribute
BLOCK: Final = 2 * MIB
DEVICE: Final = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
FD: Final = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
NONE: Final = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
FLOAT: Final = driver.CUarray_format.CU_AD_FORMAT_FLOAT
INVALID: Final = R.CUDA_ERROR_INVALID_VALUE
LAYERED: Final = 0x01
CUBEMAP: Final = 0x04


def word(pool: Any, attribute: Any) -> int:
    return int(ok(driver.cuMemPoolGetAttribute(pool, attribute)))


def reserved(pool: Any) -> int:
    return word(pool, A.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)


def used(pool: Any) -> int:
    return word(pool, A.CU_MEMPOOL_ATTR_USED_MEM_CURRENT)


def new_pool(**fields: Any) -> Any:
    properties = driver.CUmemPoolProps()
    properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = 0
    for name, value in fields.items():
        setattr(properties, name, value)
    return ok(driver.cuMemPoolCreate(properties))


def pool_chunks() -> None:
    """The GPU allocates chunks of 32 MiB, and gets them back after a synchronisation."""
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


def pool_thresholds() -> None:
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


def pool_order() -> None:
    """Memory freed in a stream is free when the stream reaches the free; the stream may reuse it
    earlier."""
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


def graph_bytes(attribute: Any = G.CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) -> int:
    return int(ok(driver.cuDeviceGetGraphMemAttribute(0, attribute)))


def alloc_parameters(size: int) -> Any:
    parameters = driver.CUDA_MEM_ALLOC_NODE_PARAMS()
    parameters.poolProps.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    parameters.poolProps.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    parameters.bytesize = size
    return parameters


def add_alloc(graph: Any, size: int, *after: Any) -> tuple[Any, int]:
    parameters = alloc_parameters(size)
    node = ok(driver.cuGraphAddMemAllocNode(graph, list(after), len(after), parameters))
    return node, int(parameters.dptr)


def scratch_graph(size: int) -> Any:
    """Allocates and frees again."""
    graph = ok(driver.cuGraphCreate(0))
    node, address = add_alloc(graph, size)
    ok(driver.cuGraphAddMemFreeNode(graph, [node], 1, address))
    return graph


def launch(executable: Any, stream: Any = 0) -> None:
    ok(driver.cuGraphLaunch(executable, stream))
    ok(driver.cuStreamSynchronize(stream))


def graph_memory() -> None:
    """Memory is allocated at the first launch, serves every replay, and is freed by a trim."""
    begin()
    before = free_bytes()
    graph = scratch_graph(5 * MIB)
    executable = ok(driver.cuGraphInstantiate(graph, 0))
    assert (graph_bytes(), free_bytes()) == (0, before)
    for _ in range(3):
        launch(executable)
        assert before - free_bytes() == graph_bytes() == 6 * MIB
    ok(driver.cuDeviceGraphMemTrim(0))
    assert (graph_bytes(), free_bytes()) == (0, before)
    ok(driver.cuGraphUpload(executable, 0))
    assert graph_bytes() == 6 * MIB
    assert graph_bytes(G.CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == 6 * MIB
    ok(driver.cuGraphExecDestroy(executable))
    ok(driver.cuGraphDestroy(graph))
    assert graph_bytes(G.CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == 0
    assert before - free_bytes() == 6 * MIB, "kept for the next one"
    other = ok(driver.cuGraphInstantiate(scratch_graph(4 * MIB), 0))
    launch(other)
    assert graph_bytes() == 6 * MIB
    ok(driver.cuGraphExecDestroy(other))
    ok(driver.cuDeviceGraphMemTrim(0))
    assert free_bytes() == before
    assert graph_bytes(G.CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) == 6 * MIB


def graph_memory_that_outlives_its_launch() -> None:
    """The program, or the next launch, frees memory that a graph allocates and does not free."""
    begin()
    graph = ok(driver.cuGraphCreate(0))
    _, address = add_alloc(graph, MIB)
    executable = ok(driver.cuGraphInstantiate(graph, 0))
    assert driver.cuGraphInstantiate(graph, 0)[0] is R.CUDA_ERROR_INVALID_VALUE
    assert driver.cuMemFreeAsync(address, 0)[0] is R.CUDA_ERROR_INVALID_VALUE
    launch(executable)
    ok(driver.cuMemsetD8(address, 1, MIB))
    assert driver.cuGraphLaunch(executable, 0)[0] is R.CUDA_ERROR_INVALID_VALUE
    ok(driver.cuDeviceGraphMemTrim(0))
    assert graph_bytes() == 2 * MIB, "in use"
    ok(driver.cuMemFreeAsync(address, 0))
    launch(executable)
    ok(driver.cuMemFree(address))
    launch(executable)
    ok(driver.cuGraphExecDestroy(executable))
    ok(driver.cuGraphDestroy(graph))
    assert graph_bytes() == 2 * MIB
    ok(driver.cuMemFree(address))
    ok(driver.cuDeviceGraphMemTrim(0))
    assert graph_bytes() == 0
    graph = ok(driver.cuGraphCreate(0))
    add_alloc(graph, MIB)
    flags = driver.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
    executable = ok(driver.cuGraphInstantiate(graph, flags.value))
    launch(executable)
    launch(executable)


def location(ordinal: int = 0, kind: Any = DEVICE) -> Any:
    where = driver.CUmemLocation()
    where.type = kind
    where.id = ordinal
    return where


def prop(ordinal: int = 0, kind: Any = DEVICE, shareable: Any = NONE) -> Any:
    made = driver.CUmemAllocationProp()
    made.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    made.location = location(ordinal, kind)
    made.requestedHandleTypes = shareable
    return made


def create(size: int, **options: Any) -> Any:
    return ok(driver.cuMemCreate(size, prop(**options), 0))


def physical_memory() -> None:
    """Memory exists until its last handle and mapping end, in any order."""
    begin()
    whole = free_bytes()
    granularity = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    assert BLOCK % ok(driver.cuMemGetAllocationGranularity(prop(), granularity)) == 0
    at = int(ok(driver.cuMemAddressReserve(64 * MIB, 0, 0, 0)))
    assert free_bytes() == whole, "addresses cost nothing"
    handle = create(20 * MIB)
    assert free_bytes() == whole - 20 * MIB
    assert driver.cuMemCreate(BLOCK + 1, prop(), 0)[0] is INVALID
    ok(driver.cuMemMap(at, 20 * MIB, 0, handle, 0))
    ok(driver.cuMemMap(at + 32 * MIB, 20 * MIB, 0, handle, 0))
    assert driver.cuMemMap(at + 18 * MIB, BLOCK, 0, handle, 0)[0] is INVALID, "mapped already"
    assert driver.cuMemAddressFree(at, 64 * MIB)[0] is INVALID, "still mapped"
    ok(driver.cuMemRelease(handle))
    assert driver.cuMemRelease(handle)[0] is INVALID
    ok(driver.cuMemUnmap(at, 20 * MIB))
    assert free_bytes() == whole - 20 * MIB
    again = ok(driver.cuMemRetainAllocationHandle(at + 40 * MIB))
    assert int(again) == int(handle)
    ok(driver.cuMemUnmap(at + 32 * MIB, 20 * MIB))
    assert free_bytes() == whole - 20 * MIB
    ok(driver.cuMemRelease(again))
    assert free_bytes() == whole
    ok(driver.cuMemAddressFree(at, 64 * MIB))


def descriptor(width: int, height: int = 0, depth: int = 0, **fields: Any) -> Any:
    made = driver.CUDA_ARRAY3D_DESCRIPTOR()
    made.Width, made.Height, made.Depth = width, height, depth
    made.Format = fields.get("format", FLOAT)
    made.NumChannels = fields.get("channels", 1)
    made.Flags = fields.get("flags", 0)
    return made


def blocks(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def arrays() -> None:
    """Sizes of every shape; each ends with its destruction, or with its context."""
    context = begin()
    whole = free_bytes()
    for made, size in (
        (descriptor(131072, channels=4), 2 * MIB),
        (descriptor(4096, 4096), 64 * MIB),
        (descriptor(4096, 4100), 4096 * 4 * 4224),
        (descriptor(256, 256, 256), 64 * MIB),
        (descriptor(1024, 1024, 5, flags=LAYERED), 20 * MIB),
        (descriptor(1024, 1024, 6, flags=CUBEMAP), 24 * MIB),
        (descriptor(1024, 1024, 12, flags=CUBEMAP | LAYERED), 48 * MIB),
    ):
        array = ok(driver.cuArray3DCreate(made))
        assert free_bytes() == whole - blocks(size), (made, whole - free_bytes())
        ok(driver.cuArrayDestroy(array))
        assert driver.cuArrayDestroy(array)[0] is R.CUDA_ERROR_INVALID_HANDLE
        assert free_bytes() == whole
    for wrong in (
        descriptor(0),
        descriptor(64, 32, 6, flags=CUBEMAP),
        descriptor(64, 64, 0, flags=LAYERED),
        descriptor(64, channels=3),
    ):
        assert driver.cuArray3DCreate(wrong)[0] is INVALID
    assert driver.cuArray3DCreate(descriptor(131072, 131072, channels=4))[0] is (
        R.CUDA_ERROR_OUT_OF_MEMORY
    )
    ok(driver.cuArray3DCreate(descriptor(4096, 4096)))
    ok(driver.cuDevicePrimaryCtxRelease(0))
    assert int(begin()) == int(context)
    assert free_bytes() == whole


def descriptors() -> None:
    """Exported memory exists while any copy of its descriptor is open: sent or inherited too."""
    begin()
    before = free_bytes()

    def export() -> int:
        handle = ok(driver.cuMemCreate(BLOCK, prop(shareable=FD), 0))
        fd = int(ok(driver.cuMemExportToShareableHandle(handle, FD, 0)))
        ok(driver.cuMemRelease(handle))
        return fd

    def taken() -> int:
        return before - free_bytes()

    first, second = export(), export()
    copy = os.dup(first)
    os.close(first)
    assert taken() == 2 * BLOCK
    os.close(copy)
    assert taken() == BLOCK
    ours, theirs = socket.socketpair()
    socket.send_fds(ours, [b"x"], [second])
    os.close(second)
    assert taken() == BLOCK, "in flight"
    (received,) = socket.recv_fds(theirs, 1, 1)[1]
    imported = ok(driver.cuMemImportFromShareableHandle(received, FD))
    os.close(received)
    assert taken() == BLOCK, "held by its import"
    again = int(ok(driver.cuMemExportToShareableHandle(imported, FD, 0)))
    ok(driver.cuMemRelease(imported))
    reading, writing = os.pipe()
    if not os.fork():
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(again)
    assert taken() == BLOCK, "inherited"
    os.close(writing)
    os.wait()
    assert taken() == 0


PROGRAMS: Final[dict[str, Callable[[], None]]] = {
    program.__name__: program
    for program in (
        pool_chunks,
        pool_thresholds,
        pool_order,
        graph_memory,
        graph_memory_that_outlives_its_launch,
        physical_memory,
        descriptors,
        arrays,
    )
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]()
