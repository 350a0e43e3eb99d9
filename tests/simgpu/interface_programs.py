"""The rest of the driver's interface that real programs use:
`python -m tests.simgpu.interface_programs NAME`.

As in cuda_programs.py, each ends with status 0 or with a traceback.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from cuda.bindings import driver

from tests.simgpu.cuda_programs import MIB, PTX, R, begin, ok

_ARRAY: Final = driver.CUmemorytype.CU_MEMORYTYPE_ARRAY
_DEVICE: Final = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
_HOST: Final = driver.CUmemorytype.CU_MEMORYTYPE_HOST

_HOST_FUNCTION: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_CALLBACK: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)


def _address(function: Any) -> int:
    """Of a function that C can call; the caller keeps it."""
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


def primary_context() -> None:
    """Its handle stays; it can be made current before it is retained again, and used after that."""
    context = begin()
    ok(driver.cuDevicePrimaryCtxRelease(0))
    assert driver.cuMemAlloc(1)[0] is R.CUDA_ERROR_CONTEXT_IS_DESTROYED
    ok(driver.cuCtxSetCurrent(0))
    ok(driver.cuCtxSetCurrent(context))
    assert int(ok(driver.cuCtxGetCurrent())) == int(context)
    assert driver.cuMemAlloc(1)[0] is R.CUDA_ERROR_CONTEXT_IS_DESTROYED
    assert int(ok(driver.cuDevicePrimaryCtxRetain(0))) == int(context)
    ok(driver.cuMemFree(ok(driver.cuMemAlloc(1))))
    own = ok(driver.cuCtxCreate(None, 0, 0))
    ok(driver.cuCtxDestroy(own))
    assert driver.cuCtxSetCurrent(own)[0] is R.CUDA_ERROR_CONTEXT_IS_DESTROYED


def limits() -> None:
    begin()
    shared, cig, fallback = (driver.CUlimit(value) for value in (7, 8, 9))
    assert [ok(driver.cuCtxGetLimit(limit)) for limit in (shared, cig, fallback)] == [0, 0, 0]
    ok(driver.cuCtxSetLimit(fallback, 1))
    assert ok(driver.cuCtxGetLimit(fallback)) == 1
    ok(driver.cuCtxSetLimit(cig, 0))
    assert driver.cuCtxSetLimit(cig, 1)[0] is R.CUDA_ERROR_UNSUPPORTED_LIMIT


def host_functions() -> None:
    """They run when their stream gets there, in another thread; a wait for it finds them done."""
    begin()
    module = ok(driver.cuModuleLoadData(PTX))
    twenty_ms = ok(driver.cuModuleGetFunction(module, b"twenty_ms"))
    hour = ok(driver.cuModuleGetFunction(module, b"hour"))
    stream, slow = (ok(driver.cuStreamCreate(1)) for _ in range(2))
    called: list[tuple[str, int, bool, float]] = []
    may_end = threading.Event()

    def note(name: str, data: int) -> None:
        other = threading.current_thread() is not threading.main_thread()
        called.append((name, data, other, time.monotonic()))

    def wait(_data: int) -> None:
        may_end.wait()
        note("waiting", 0)

    function = _HOST_FUNCTION(lambda data: note("function", data))
    waiting = _HOST_FUNCTION(wait)
    callback = _CALLBACK(lambda _stream, status, data: note(f"callback {status}", data))

    start = time.monotonic()
    parameters = ((0, 0, 0), (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint64))
    ok(driver.cuLaunchKernel(twenty_ms, 1, 1, 1, 1, 1, 1, 0, stream, parameters, 0))
    ok(driver.cuLaunchHostFunc(stream, driver.CUhostFn(_address(function)), 11))
    made = driver.CUstreamCallback(_address(callback))
    ok(driver.cuStreamAddCallback(stream, made, 12, 0))
    ok(driver.cuStreamSynchronize(stream))
    assert [each[:3] for each in called] == [("function", 11, True), ("callback 0", 12, True)]
    assert called[0][3] - start > 0.019
    ok(driver.cuLaunchHostFunc(stream, driver.CUhostFn(_address(waiting)), 0))
    event = ok(driver.cuEventCreate(0))
    ok(driver.cuEventRecord(event, stream))
    time.sleep(0.01)
    assert driver.cuStreamQuery(stream)[0] is R.CUDA_ERROR_NOT_READY
    assert driver.cuEventQuery(event)[0] is R.CUDA_ERROR_NOT_READY
    may_end.set()
    ok(driver.cuEventSynchronize(event))
    assert called[-1][0] == "waiting"
    # One that is due in an hour delays no other.
    ok(driver.cuLaunchKernel(hour, 1, 1, 1, 1, 1, 1, 0, slow, 0, 0))
    ok(driver.cuLaunchHostFunc(slow, driver.CUhostFn(_address(waiting)), 0))
    ok(driver.cuLaunchHostFunc(stream, driver.CUhostFn(_address(function)), 13))
    ok(driver.cuStreamSynchronize(stream))
    assert called[-1][:2] == ("function", 13)
    assert driver.cuLaunchHostFunc(stream, None, 0)[0] is R.CUDA_ERROR_INVALID_VALUE
    sys.stdout.flush()
    os._exit(0)  # the GPU is busy for an hour


def registered_memory() -> None:
    begin()
    pages = (ctypes.c_char * (4 * MIB))()
    place = ctypes.addressof(pages)
    copy = ok(driver.cuMemAlloc(16))
    assert driver.cuMemcpyDtoD(copy, place, 16)[0] is R.CUDA_ERROR_INVALID_VALUE
    portable = driver.CU_MEMHOSTREGISTER_PORTABLE
    ok(driver.cuMemHostRegister(place, MIB, portable))
    assert ok(driver.cuMemHostGetFlags(place)) == portable
    assert int(ok(driver.cuMemHostGetDevicePointer(place, 0))) == place
    kind = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    assert ok(driver.cuPointerGetAttribute(kind, place + 100)) == int(_HOST)
    ok(driver.cuMemcpyDtoD(copy, place, 16))
    already, not_registered = (
        R.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
        R.CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
    )
    assert driver.cuMemHostRegister(place + 100, MIB, 0)[0] is already
    assert driver.cuMemHostUnregister(place + 100)[0] is not_registered
    assert driver.cuMemFreeHost(place)[0] is R.CUDA_ERROR_INVALID_VALUE
    ok(driver.cuMemHostUnregister(place))
    assert driver.cuMemHostUnregister(place)[0] is not_registered
    assert driver.cuMemcpyDtoD(copy, place, 16)[0] is R.CUDA_ERROR_INVALID_VALUE


def _box(source: Any, target: Any, width: int, height: int, depth: int) -> Any:
    """source, target: (kind, address or array, pitch, height of a slice, (x, y, z))."""
    box = driver.CUDA_MEMCPY3D()
    for side, (kind, where, pitch, rows, (x, y, z)) in (("src", source), ("dst", target)):
        setattr(box, f"{side}MemoryType", kind)
        setattr(box, f"{side}{ {_HOST: 'Host', _DEVICE: 'Device', _ARRAY: 'Array'}[kind] }", where)
        setattr(box, f"{side}Pitch", pitch)
        setattr(box, f"{side}Height", rows)
        setattr(box, f"{side}XInBytes", x)
        setattr(box, f"{side}Y", y)
        setattr(box, f"{side}Z", z)
    box.WidthInBytes, box.Height, box.Depth = width, height, depth
    return box


def boxes() -> None:
    """Copies of three dimensions, from host memory to a device's and to an array, and back."""
    begin()
    data = bytes(range(240))
    source, target = ctypes.create_string_buffer(data, 240), ctypes.create_string_buffer(240)
    from_host = (_HOST, ctypes.addressof(source), 10, 6, (0, 0, 0))
    to_host = (_HOST, ctypes.addressof(target), 10, 6, (0, 0, 0))
    device = ok(driver.cuMemAlloc(16 * 8 * 4))
    ok(driver.cuMemcpy3D(_box(from_host, (_DEVICE, device, 16, 8, (3, 1, 0)), 10, 6, 4)))
    ok(driver.cuMemcpy3D(_box((_DEVICE, device, 16, 8, (3, 1, 0)), to_host, 10, 6, 4)))
    assert target.raw == data
    beyond = _box(from_host, (_DEVICE, device, 16, 8, (3, 3, 0)), 10, 6, 4)
    assert driver.cuMemcpy3D(beyond)[0] is R.CUDA_ERROR_INVALID_VALUE
    description = driver.CUDA_ARRAY3D_DESCRIPTOR()
    description.Width, description.Height, description.Depth = 12, 8, 4
    description.NumChannels = 1
    description.Format = driver.CUarray_format.CU_AD_FORMAT_UNSIGNED_INT8
    array = ok(driver.cuArray3DCreate(description))
    stream = ok(driver.cuStreamCreate(1))
    ctypes.memset(target, 0, 240)
    ok(driver.cuMemcpy3DAsync(_box(from_host, (_ARRAY, array, 0, 0, (2, 1, 0)), 10, 6, 4), stream))
    ok(driver.cuMemcpy3DAsync(_box((_ARRAY, array, 0, 0, (2, 1, 0)), to_host, 10, 6, 4), stream))
    ok(driver.cuStreamSynchronize(stream))
    assert target.raw == data
    beyond = _box(from_host, (_ARRAY, array, 0, 0, (3, 1, 0)), 10, 6, 4)
    assert driver.cuMemcpy3D(beyond)[0] is R.CUDA_ERROR_INVALID_VALUE
    flat = driver.CUDA_MEMCPY2D()
    flat.srcMemoryType, flat.srcArray = _ARRAY, array
    flat.srcXInBytes, flat.srcY = 2, 1
    flat.dstMemoryType, flat.dstHost, flat.dstPitch = _HOST, ctypes.addressof(target), 10
    flat.WidthInBytes, flat.Height = 10, 6
    ctypes.memset(target, 0, 240)
    ok(driver.cuMemcpy2D(flat))
    assert target.raw[:60] == data[:60]
    ok(driver.cuArrayDestroy(array))
    gone = _box(from_host, (_ARRAY, array, 0, 0, (0, 0, 0)), 10, 6, 4)
    assert driver.cuMemcpy3D(gone)[0] is R.CUDA_ERROR_INVALID_HANDLE


def hints() -> None:
    """Of managed memory: taken where they can be meant, and without effect."""
    begin()
    attach = driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL
    managed = ok(driver.cuMemAllocManaged(MIB, attach.value))
    plain = ok(driver.cuMemAlloc(MIB))
    location = driver.CUmemLocation()
    location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    read_mostly = driver.CUmem_advise.CU_MEM_ADVISE_SET_READ_MOSTLY
    for code, address, size, ordinal in (
        (R.CUDA_SUCCESS, managed, MIB, 0),
        (R.CUDA_ERROR_INVALID_VALUE, managed, MIB + 1, 0),
        (R.CUDA_ERROR_INVALID_VALUE, plain, MIB, 0),
        (R.CUDA_ERROR_INVALID_DEVICE, managed, MIB, 9),
    ):
        location.id = ordinal
        assert driver.cuMemPrefetchAsync(address, size, location, 0, 0)[0] is code
        assert driver.cuMemAdvise(address, size, read_mostly, location)[0] is code


def peers() -> None:
    """No GPU reaches another's memory, and every question says so."""
    first = begin()
    second = ok(driver.cuDevicePrimaryCtxRetain(1))
    assert ok(driver.cuDeviceCanAccessPeer(0, 1)) == 0
    assert driver.cuCtxEnablePeerAccess(second, 0)[0] is R.CUDA_ERROR_PEER_ACCESS_UNSUPPORTED
    assert driver.cuCtxEnablePeerAccess(first, 0)[0] is R.CUDA_ERROR_INVALID_DEVICE
    assert driver.cuCtxDisablePeerAccess(second)[0] is R.CUDA_ERROR_PEER_ACCESS_NOT_ENABLED
    ok(driver.cuProfilerStart())
    ok(driver.cuProfilerStop())
    stream = ok(driver.cuStreamCreate(1))
    green = ctypes.c_void_p(1)
    cuda = ctypes.CDLL("libcuda.so.1")
    assert cuda.cuStreamGetGreenCtx(ctypes.c_void_p(int(stream)), ctypes.byref(green)) == 0
    assert green.value is None
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_DEVICE_NODE_UPDATE_SUPPORTED
    function = ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(PTX)), b"brief"))
    assert ok(driver.cuFuncGetAttribute(attribute, function)) == 0


def user_objects() -> None:
    """A graph, and what was instantiated of it, keep what a program gave them; then it ends."""
    begin()
    ended: list[int] = []
    gone = threading.Event()

    def end(data: int) -> None:
        ended.append(data)
        gone.set()

    destroy = _HOST_FUNCTION(end)
    function = driver.CUhostFn(_address(destroy))
    no_sync = driver.CUuserObject_flags.CU_USER_OBJECT_NO_DESTRUCTOR_SYNC.value
    move = driver.CUuserObjectRetain_flags.CU_GRAPH_USER_OBJECT_MOVE.value
    assert driver.cuUserObjectCreate(1, function, 1, 0)[0] is R.CUDA_ERROR_INVALID_VALUE
    kept = ok(driver.cuUserObjectCreate(77, function, 1, no_sync))
    graph = ok(driver.cuGraphCreate(0))
    ok(driver.cuGraphRetainUserObject(graph, kept, 1, move))
    ok(driver.cuUserObjectRetain(kept, 2))
    ok(driver.cuUserObjectRelease(kept, 2))
    ok(driver.cuGraphRetainUserObject(graph, kept, 3, 0))
    ok(driver.cuGraphReleaseUserObject(graph, kept, 3))
    executable = ok(driver.cuGraphInstantiate(ok(driver.cuGraphClone(graph)), 0))
    ok(driver.cuGraphDestroy(graph))
    assert ended == []
    ok(driver.cuGraphExecDestroy(executable))
    assert ended == [], "the clone has it"
    assert not gone.wait(0.05)
    other = ok(driver.cuUserObjectCreate(78, function, 2, no_sync))
    ok(driver.cuUserObjectRelease(other, 2))
    assert gone.wait(60) and ended == [78]
    assert driver.cuUserObjectRelease(other, 1)[0] is R.CUDA_ERROR_INVALID_VALUE


def textures() -> None:
    begin()
    description = driver.CUDA_ARRAY_DESCRIPTOR()
    description.Width = description.Height = 16
    description.NumChannels = 4
    description.Format = driver.CUarray_format.CU_AD_FORMAT_FLOAT
    array = ok(driver.cuArrayCreate(description))
    resource = driver.CUDA_RESOURCE_DESC()
    resource.resType = driver.CUresourcetype.CU_RESOURCE_TYPE_ARRAY
    resource.res.array.hArray = array
    look = driver.CUDA_TEXTURE_DESC()
    look.maxAnisotropy = 3
    texture = ok(driver.cuTexObjectCreate(resource, look, None))
    assert int(ok(driver.cuTexObjectGetResourceDesc(texture)).res.array.hArray) == int(array)
    assert ok(driver.cuTexObjectGetTextureDesc(texture)).maxAnisotropy == 3
    surface = ok(driver.cuSurfObjectCreate(resource))
    ok(driver.cuSurfObjectDestroy(surface))
    ok(driver.cuTexObjectDestroy(texture))
    assert driver.cuTexObjectDestroy(texture)[0] is R.CUDA_ERROR_INVALID_VALUE
    ok(driver.cuArrayDestroy(array))
    assert driver.cuTexObjectCreate(resource, look, None)[0] is R.CUDA_ERROR_INVALID_VALUE


def _importer(pipe: Any) -> None:
    """Opens events by their handles, and says what it sees of them."""
    begin()
    stream = ok(driver.cuStreamCreate(1))
    events: list[Any] = []
    while command := pipe.recv():
        match command:
            case ("open", reserved):
                handle = driver.CUipcEventHandle()
                ctypes.memmove(handle.getPtr(), reserved, 64)
                code, event = driver.cuIpcOpenEventHandle(handle)
                if code is R.CUDA_SUCCESS:
                    events.append(event)
                pipe.send(int(code))
            case ("query",):
                pipe.send(int(driver.cuEventQuery(events[0])[0]))
            case ("wait",):
                ok(driver.cuStreamWaitEvent(stream, events[0], 0))
                pipe.send(int(driver.cuStreamQuery(stream)[0]))
            case ("synchronize",):
                pipe.send(int(driver.cuEventSynchronize(events[0])[0]))
            case ("record",):
                pipe.send(int(driver.cuEventRecord(events[0], 0)[0]))


def shared_events() -> None:
    """What one process records, another can ask and wait for, and the other way round."""
    begin()
    flags = driver.CUevent_flags
    timed = flags.CU_EVENT_INTERPROCESS.value
    assert driver.cuEventCreate(timed)[0] is R.CUDA_ERROR_INVALID_VALUE
    event = ok(driver.cuEventCreate(timed | flags.CU_EVENT_DISABLE_TIMING.value))
    plain = ok(driver.cuEventCreate(0))
    assert driver.cuIpcGetEventHandle(plain)[0] is R.CUDA_ERROR_INVALID_HANDLE
    handle = ok(driver.cuIpcGetEventHandle(event))
    assert driver.cuIpcOpenEventHandle(handle)[0] is R.CUDA_ERROR_INVALID_CONTEXT
    hour = ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(PTX)), b"hour"))
    busy, idle = (ok(driver.cuStreamCreate(1)) for _ in range(2))
    spawn = multiprocessing.get_context("spawn")
    pipe, theirs = spawn.Pipe()
    child = spawn.Process(target=_importer, args=(theirs,))
    child.start()
    theirs.close()
    raw = ctypes.string_at(handle.getPtr(), 64)

    def ask(*command: Any) -> Any:
        pipe.send(command)
        return R(pipe.recv())

    success, not_ready = R.CUDA_SUCCESS, R.CUDA_ERROR_NOT_READY
    assert ask("open", bytes(64)) is R.CUDA_ERROR_INVALID_HANDLE
    assert ask("open", raw) is success
    assert ask("query") is success, "never recorded"
    ok(driver.cuEventRecord(event, idle))
    assert ask("synchronize") is success
    ok(driver.cuLaunchKernel(hour, 1, 1, 1, 1, 1, 1, 0, busy, 0, 0))
    ok(driver.cuEventRecord(event, busy))
    assert ask("query") is not_ready
    assert ask("wait") is not_ready
    assert ask("record") is success
    ok(driver.cuEventSynchronize(event))
    ok(driver.cuEventDestroy(event))
    assert ask("query") is success, "it has it still"
    assert ask("open", raw) is R.CUDA_ERROR_INVALID_HANDLE
    pipe.send(None)
    child.join()
    assert child.exitcode == 0
    os._exit(0)  # the GPU is busy for an hour


PROGRAMS: Final[dict[str, Callable[[], None]]] = {
    program.__name__: program
    for program in (
        primary_context,
        limits,
        host_functions,
        registered_memory,
        boxes,
        hints,
        peers,
        textures,
        user_objects,
        shared_events,
    )
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]()
