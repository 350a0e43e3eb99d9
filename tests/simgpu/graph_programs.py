"""Stream capture and graph memory: `python -m tests.simgpu.graph_programs NAME`.

As cuda_programs: each checks what it says and ends with status 0, or with a traceback.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any, Final

from cuda.bindings import driver

from tests.simgpu.cuda_programs import GIB, MIB, PTX, R, begin, free_bytes, ok
from tests.simgpu.pool_programs import reserved

M: Final = driver.CUgraphMem_attribute
T: Final = driver.CUgraphNodeType
GLOBAL: Final = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
RELAXED: Final = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
ACTIVE: Final = driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE


def graph_bytes(attribute: Any = M.CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) -> int:
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


def memory() -> None:
    """Memory comes with the first launch, serves every replay, and goes when it is trimmed."""
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
    assert graph_bytes(M.CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == 6 * MIB
    ok(driver.cuGraphExecDestroy(executable))
    ok(driver.cuGraphDestroy(graph))
    assert graph_bytes(M.CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == 0
    assert before - free_bytes() == 6 * MIB, "kept for the next one"
    other = ok(driver.cuGraphInstantiate(scratch_graph(4 * MIB), 0))
    launch(other)
    assert graph_bytes() == 6 * MIB
    ok(driver.cuGraphExecDestroy(other))
    ok(driver.cuDeviceGraphMemTrim(0))
    assert free_bytes() == before
    assert graph_bytes(M.CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) == 6 * MIB


def escaping() -> None:
    """What a graph allocates and does not free is freed by the program, or at the next launch."""
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


def structure() -> None:
    """Nodes, their kinds, children; what graphs with memory may not do."""
    begin()
    graph, child = (ok(driver.cuGraphCreate(0)) for _ in range(2))
    function = ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(PTX)), b"brief"))
    kernel = driver.CUDA_KERNEL_NODE_PARAMS()
    kernel.func = function
    kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = 1
    kernel.blockDimX = kernel.blockDimY = kernel.blockDimZ = 1
    first = ok(driver.cuGraphAddKernelNode(child, None, 0, kernel))
    ok(driver.cuGraphAddEmptyNode(child, [first], 1))
    node = ok(driver.cuGraphAddChildGraphNode(graph, None, 0, child))
    inside = ok(driver.cuGraphChildGraphNodeGetGraph(node))
    assert ok(driver.cuGraphGetNodes(inside))[1] == 2
    assert driver.cuGraphDestroy(inside)[0] is R.CUDA_ERROR_INVALID_VALUE
    assert driver.cuGraphAddEmptyNode(graph, [first], 1)[0] is R.CUDA_ERROR_INVALID_VALUE
    assert ok(driver.cuGraphNodeGetType(node)) is T.CU_GRAPH_NODE_TYPE_GRAPH
    copy = ok(driver.cuGraphClone(graph))
    launch(ok(driver.cuGraphInstantiate(copy, 0)))
    alloc, address = add_alloc(graph, 3 * MIB, node)
    assert int(ok(driver.cuGraphMemAllocNodeGetParams(alloc)).dptr) == address
    assert driver.cuGraphClone(graph)[0] is not R.CUDA_SUCCESS
    parent = ok(driver.cuGraphCreate(0))
    assert driver.cuGraphAddChildGraphNode(parent, None, 0, graph)[0] is not R.CUDA_SUCCESS
    ok(driver.cuGraphAddMemFreeNode(graph, [alloc], 1, address))
    again = driver.cuGraphAddMemFreeNode(graph, [alloc], 1, address)
    assert again[0] is R.CUDA_ERROR_INVALID_VALUE
    parameters = driver.CUgraphNodeParams()
    parameters.type = T.CU_GRAPH_NODE_TYPE_GRAPH
    parameters.graph.graph = graph
    parameters.graph.ownership = (
        driver.CUgraphChildGraphNodeOwnership.CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE
    )
    ok(driver.cuGraphAddNode(parent, None, None, 0, parameters))
    launch(ok(driver.cuGraphInstantiate(parent, 0)))
    assert graph_bytes() == 4 * MIB


def capture() -> None:
    """Captured kernels and allocations become nodes, and take nothing before they are launched."""
    begin()
    function = ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(PTX)), b"brief"))
    pool = ok(driver.cuDeviceGetDefaultMemPool(0))
    stream, other = (ok(driver.cuStreamCreate(1)) for _ in range(2))
    event = ok(driver.cuEventCreate(0))
    before = free_bytes()
    ok(driver.cuStreamBeginCapture(stream, RELAXED))
    assert ok(driver.cuStreamIsCapturing(stream)) is ACTIVE
    address = ok(driver.cuMemAllocAsync(MIB, stream))
    ok(driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0))
    ok(driver.cuEventRecord(event, stream))
    assert driver.cuEventQuery(event)[0] is R.CUDA_ERROR_CAPTURED_EVENT
    ok(driver.cuStreamWaitEvent(other, event, 0))
    assert ok(driver.cuStreamIsCapturing(other)) is ACTIVE
    ok(driver.cuMemFreeAsync(address, other))
    ok(driver.cuEventRecord(event, other))
    ok(driver.cuStreamWaitEvent(stream, event, 0))
    plain = ok(driver.cuMemAlloc(MIB))
    graph = ok(driver.cuStreamEndCapture(stream))
    assert (reserved(pool), graph_bytes(), ok(driver.cuGraphGetNodes(graph))[1]) == (0, 0, 3)
    ok(driver.cuMemFree(plain))
    executable = ok(driver.cuGraphInstantiate(graph, 0))
    launch(executable, stream)
    launch(executable, other)
    assert before - free_bytes() == graph_bytes() == 2 * MIB
    assert driver.cuStreamEndCapture(stream)[0] is R.CUDA_ERROR_ILLEGAL_STATE


def captured_work() -> None:
    """Copies, fills and host functions are nodes of a capture, and each launch does them again."""
    begin()
    device = ok(driver.cuMemAlloc(64))
    written, read = (bytearray(16) for _ in range(2))
    calls: list[int] = []

    called = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(calls.append)
    stream = ok(driver.cuStreamCreate(1))
    ok(driver.cuStreamBeginCapture(stream, GLOBAL))
    ok(driver.cuMemsetD8Async(device, 7, 64, stream))
    ok(driver.cuMemcpyHtoDAsync(int(device) + 16, written, 16, stream))
    ok(driver.cuMemcpyDtoDAsync(int(device) + 32, int(device) + 8, 16, stream))
    ok(driver.cuMemcpyDtoHAsync(read, int(device) + 32, 16, stream))
    function = ctypes.cast(called, ctypes.c_void_p).value
    ok(driver.cuLaunchHostFunc(stream, driver.CUhostFn(function), 5))
    assert driver.cuMemcpyDtoHAsync(read, 1, 16, stream)[0] is R.CUDA_ERROR_INVALID_VALUE
    graph = ok(driver.cuStreamEndCapture(stream))
    nodes, count = ok(driver.cuGraphGetNodes(graph, 5))
    assert [ok(driver.cuGraphNodeGetType(node)) for node in nodes] == [
        T.CU_GRAPH_NODE_TYPE_MEMSET,
        *[T.CU_GRAPH_NODE_TYPE_MEMCPY] * 3,
        T.CU_GRAPH_NODE_TYPE_HOST,
    ]
    assert (count, bytes(read), calls) == (5, bytes(16), [])
    executable = ok(driver.cuGraphInstantiate(ok(driver.cuGraphClone(graph)), 0))
    for round_ in (1, 2):
        written[:] = bytes([round_] * 16)
        launch(executable, stream)
        assert bytes(read) == bytes([7] * 8 + [round_] * 8)
        assert calls == [5] * round_
    ok(driver.cuMemFree(device))
    assert driver.cuGraphLaunch(executable, stream)[0] is R.CUDA_ERROR_INVALID_VALUE


def spoilt() -> None:
    """What a capture does not bear is refused, and ends it."""
    begin()
    stream = ok(driver.cuStreamCreate(1))
    unsupported = R.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    spoilers: tuple[Callable[[], tuple[Any, ...]], ...] = (
        lambda: driver.cuMemAlloc(MIB),
        lambda: driver.cuCtxSynchronize(),
        lambda: driver.cuStreamSynchronize(stream),
        lambda: driver.cuStreamQuery(stream),
        lambda: driver.cuMemPoolTrimTo(ok(driver.cuDeviceGetDefaultMemPool(0)), 0),
    )
    for spoil in spoilers:
        ok(driver.cuStreamBeginCapture(stream, GLOBAL))
        assert spoil()[0] is unsupported
        ended = driver.cuStreamEndCapture(stream)
        assert ended[0] is R.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    ok(driver.cuStreamBeginCapture(stream, GLOBAL))
    before = ok(driver.cuThreadExchangeStreamCaptureMode(RELAXED))
    assert before is GLOBAL
    ok(driver.cuMemFree(ok(driver.cuMemAlloc(MIB))))
    ok(driver.cuThreadExchangeStreamCaptureMode(GLOBAL))
    assert ok(driver.cuGraphGetNodes(ok(driver.cuStreamEndCapture(stream))))[1] == 0
    assert driver.cuStreamBeginCapture(0, GLOBAL)[0] is unsupported


def shortage() -> None:
    """A graph that does not fit takes nothing; a reset takes what graphs had."""
    begin()
    graph = ok(driver.cuGraphCreate(0))
    for size in (20 * GIB, 30 * GIB):
        node, address = add_alloc(graph, size)
        ok(driver.cuGraphAddMemFreeNode(graph, [node], 1, address))
    executable = ok(driver.cuGraphInstantiate(graph, 0))
    assert driver.cuGraphLaunch(executable, 0)[0] is R.CUDA_ERROR_OUT_OF_MEMORY
    assert graph_bytes() == 0
    for size in (25 * GIB, 30 * GIB):
        launch(ok(driver.cuGraphInstantiate(scratch_graph(size), 0)))
        assert graph_bytes() == size, "what is idle makes room"
    ok(driver.cuDevicePrimaryCtxReset(0))
    begin()
    assert graph_bytes() == 0
    assert free_bytes() > 39 * GIB


PROGRAMS: Final[dict[str, Callable[[], None]]] = {
    program.__name__: program
    for program in (memory, escaping, structure, capture, captured_work, spoilt, shortage)
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]()
