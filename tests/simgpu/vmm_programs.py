"""Physical memory, arrays and external memory: `python -m tests.simgpu.vmm_programs NAME`.

As cuda_programs: each checks what it says and ends with status 0, or with a traceback.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from collections.abc import Callable
from typing import Any, Final

from cuda.bindings import driver

from tests.simgpu.cuda_programs import GIB, MIB, R, begin, free_bytes, ok

BLOCK: Final = 2 * MIB
DEVICE: Final = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
HOST: Final = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST
FD: Final = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
FABRIC: Final = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_FABRIC
NONE: Final = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
FLOAT: Final = driver.CUarray_format.CU_AD_FORMAT_FLOAT
UINT8: Final = driver.CUarray_format.CU_AD_FORMAT_UNSIGNED_INT8
INVALID: Final = R.CUDA_ERROR_INVALID_VALUE
LAYERED: Final = 0x01
CUBEMAP: Final = 0x04
SPARSE: Final = 0x40
DEFERRED: Final = 0x80


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


def reserve(size: int) -> int:
    return int(ok(driver.cuMemAddressReserve(size, 0, 0, 0)))


def allow(address: int, size: int, ordinal: int = 0) -> None:
    access = driver.CUmemAccessDesc()
    access.location = location(ordinal)
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    ok(driver.cuMemSetAccess(address, size, [access], 1))


def peek(address: int, size: int) -> bytes:
    data = ctypes.create_string_buffer(size)
    ok(driver.cuMemcpyDtoH(ctypes.addressof(data), address, size))
    return data.raw


def life() -> None:
    """Memory lives until the last of its handles and mappings goes, in any order."""
    begin()
    whole = free_bytes()
    granularity = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    assert BLOCK % ok(driver.cuMemGetAllocationGranularity(prop(), granularity)) == 0
    at = reserve(64 * MIB)
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


def access() -> None:
    """Mapped memory can be used from cuMemSetAccess on, across mappings; two mappings agree."""
    begin()
    at = reserve(8 * BLOCK)
    handles = [create(BLOCK) for _ in range(2)]
    for index, handle in enumerate(handles):
        ok(driver.cuMemMap(at + index * BLOCK, BLOCK, 0, handle, 0))
    assert driver.cuMemsetD8(at, 1, 1)[0] is INVALID
    allow(at, 2 * BLOCK)
    assert ok(driver.cuMemGetAccess(location(), at)) == 3
    ok(driver.cuMemsetD8(at, 7, 2 * BLOCK))
    assert driver.cuMemsetD8(at, 7, 2 * BLOCK + 1)[0] is INVALID
    ok(driver.cuMemMap(at + 4 * BLOCK, BLOCK, 0, handles[1], 0))
    allow(at + 4 * BLOCK, BLOCK)
    assert peek(at + 4 * BLOCK, 3) == b"\7\7\7"
    assert driver.cuMemFree(at)[0] is INVALID, "not cuMemAlloc's"
    ok(driver.cuMemUnmap(at, 2 * BLOCK))
    assert driver.cuMemsetD8(at, 1, 1)[0] is INVALID
    assert peek(at + 4 * BLOCK, 3) == b"\7\7\7"


def elsewhere() -> None:
    """Memory goes to the device it was asked for, or to none: with no context at all."""
    ok(driver.cuInit(0))
    host = create(BLOCK, kind=HOST)
    other = create(BLOCK, ordinal=1)
    begin(1)
    assert free_bytes() % GIB, "a context and a block"
    before = free_bytes()
    ok(driver.cuMemRelease(other))
    assert free_bytes() == before + BLOCK
    ok(driver.cuMemRelease(host))
    assert free_bytes() == before + BLOCK
    assert driver.cuMemCreate(BLOCK, prop(7), 0)[0] is R.CUDA_ERROR_INVALID_DEVICE


def shared() -> None:
    """What one process exported lives on in another; both see the same data."""
    ours, theirs = os.pipe(), os.pipe()
    pid = os.fork()
    os.close(theirs[1] if pid else theirs[0])
    if pid == 0:
        begin()
        handle = create(BLOCK, shareable=FD)
        at = reserve(BLOCK)
        ok(driver.cuMemMap(at, BLOCK, 0, handle, 0))
        allow(at, BLOCK)
        ok(driver.cuMemsetD8(at, 42, BLOCK))
        fd = int(ok(driver.cuMemExportToShareableHandle(handle, FD, 0)))
        os.write(theirs[1], f"{os.getpid()} {fd}".encode())
        os.read(ours[0], 1)
        os._exit(0)
    whose, number = os.read(theirs[0], 64).decode().split()  # fails where the child did
    begin()
    before = free_bytes()
    fd = os.open(f"/proc/{whose}/fd/{number}", os.O_RDWR)
    handle = ok(driver.cuMemImportFromShareableHandle(fd, FD))
    os.close(fd)
    found = ok(driver.cuMemGetAllocationPropertiesFromHandle(handle))
    assert (found.location.type, found.location.id) == (DEVICE, 0)
    assert free_bytes() == before, "one memory, two holders"
    os.write(ours[1], b"x")
    os.waitpid(pid, 0)
    with_them_gone = free_bytes()
    at = reserve(BLOCK)
    ok(driver.cuMemMap(at, BLOCK, 0, handle, 0))
    allow(at, BLOCK)
    assert peek(at, 2) == b"**"
    ok(driver.cuMemUnmap(at, BLOCK))
    assert free_bytes() == with_them_gone
    ok(driver.cuMemRelease(handle))
    assert free_bytes() == with_them_gone + BLOCK


def fabric() -> None:
    begin()
    whole = free_bytes()
    handle = create(BLOCK, shareable=FABRIC)
    assert driver.cuMemExportToShareableHandle(handle, FD, 0)[0] is INVALID, "not asked for"
    token = ok(driver.cuMemExportToShareableHandle(handle, FABRIC, 0))
    again = ok(driver.cuMemImportFromShareableHandle(token.getPtr(), FABRIC))
    assert int(again) != int(handle)
    assert free_bytes() == whole - BLOCK
    ok(driver.cuMemRelease(handle))
    assert free_bytes() == whole - BLOCK
    ok(driver.cuMemRelease(again))
    assert free_bytes() == whole


def multicast() -> None:
    """Bound memory is held until it is unbound, or the object goes."""
    begin()
    whole = free_bytes()
    wanted = driver.CUmulticastObjectProp()
    wanted.numDevices = 1
    wanted.size = 4 * BLOCK
    granularity = driver.CUmulticastGranularity_flags.CU_MULTICAST_GRANULARITY_MINIMUM
    assert BLOCK % ok(driver.cuMulticastGetGranularity(wanted, granularity)) == 0
    group = ok(driver.cuMulticastCreate(wanted))
    handle = create(BLOCK)
    assert driver.cuMulticastBindMem(group, 0, handle, 0, BLOCK, 0)[0] is INVALID, "no device yet"
    ok(driver.cuMulticastAddDevice(group, 0))
    assert free_bytes() == whole - BLOCK
    ok(driver.cuMulticastBindMem(group, 0, handle, 0, BLOCK, 0))
    ok(driver.cuMemRelease(handle))
    assert free_bytes() == whole - BLOCK
    assert driver.cuMulticastUnbind(group, 0, BLOCK, BLOCK)[0] is INVALID
    ok(driver.cuMulticastUnbind(group, 0, 0, BLOCK))
    assert free_bytes() == whole
    at = reserve(BLOCK)
    handle = create(BLOCK)
    ok(driver.cuMemMap(at, BLOCK, 0, handle, 0))
    ok(driver.cuMulticastBindAddr(group, 2 * BLOCK, at, BLOCK, 0))
    ok(driver.cuMemUnmap(at, BLOCK))
    ok(driver.cuMemRelease(handle))
    assert free_bytes() == whole - BLOCK
    ok(driver.cuMemRelease(group))
    assert free_bytes() == whole


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
    """Sizes of every shape; each goes with its destruction, or with its context."""
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
        got = ok(driver.cuArray3DGetDescriptor(array))
        assert (got.Width, got.Height, got.Depth) == (made.Width, made.Height, made.Depth)
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


def mipmaps() -> None:
    begin()
    whole = free_bytes()
    mipmap = ok(driver.cuMipmappedArrayCreate(descriptor(2048, 2048), 99))
    # 16 MiB, a third of it for the levels below, the last ones a tile each.
    assert 64 * MIB // 3 < whole - free_bytes() <= 22 * MIB
    levels = [ok(driver.cuMipmappedArrayGetLevel(mipmap, index)) for index in range(12)]
    assert driver.cuMipmappedArrayGetLevel(mipmap, 12)[0] is INVALID
    assert int(levels[3]) == int(ok(driver.cuMipmappedArrayGetLevel(mipmap, 3)))
    assert ok(driver.cuArrayGetDescriptor(levels[3])).Width == 256
    assert driver.cuArrayDestroy(levels[3])[0] is R.CUDA_ERROR_INVALID_HANDLE
    ok(driver.cuMipmappedArrayDestroy(mipmap))
    assert free_bytes() == whole


def tiles() -> None:
    """Sparse and deferred arrays have the memory that is mapped to them, and hold it."""
    begin()
    whole = free_bytes()
    mipmap = ok(driver.cuMipmappedArrayCreate(descriptor(4096, 4096, flags=SPARSE), 99))
    shape = ok(driver.cuMipmappedArrayGetSparseProperties(mipmap))
    tile = shape.tileExtent
    assert tile.width * tile.height * tile.depth * 4 == 65536 and shape.miptailSize % 65536 == 0
    array = ok(driver.cuArray3DCreate(descriptor(512, 512, flags=DEFERRED)))
    needs = ok(driver.cuArrayGetMemoryRequirements(array, 0))
    assert (needs.size, free_bytes()) == (MIB, whole)
    handle = create(BLOCK)
    info = driver.CUarrayMapInfo()
    info.resourceType = driver.CUresourcetype.CU_RESOURCE_TYPE_MIPMAPPED_ARRAY
    info.resource.mipmap = mipmap
    info.subresourceType = driver.CUarraySparseSubresourceType(0)
    info.subresource.sparseLevel.extentWidth = tile.width
    info.subresource.sparseLevel.extentHeight = tile.height
    info.subresource.sparseLevel.extentDepth = 1
    info.memOperationType = driver.CUmemOperationType.CU_MEM_OPERATION_TYPE_MAP
    info.memHandleType = driver.CUmemHandleType.CU_MEM_HANDLE_TYPE_GENERIC
    info.memHandle.memHandle = handle
    ok(driver.cuMemMapArrayAsync([info], 1, 0))
    ok(driver.cuMemRelease(handle))
    assert free_bytes() == whole - BLOCK
    info.memOperationType = driver.CUmemOperationType.CU_MEM_OPERATION_TYPE_UNMAP
    ok(driver.cuMemMapArrayAsync([info], 1, 0))
    assert free_bytes() == whole


def imported() -> Any:
    handle = create(2 * BLOCK, shareable=FD)
    wanted = driver.CUDA_EXTERNAL_MEMORY_HANDLE_DESC()
    wanted.type = driver.CUexternalMemoryHandleType.CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD
    wanted.handle.fd = int(ok(driver.cuMemExportToShareableHandle(handle, FD, 0)))
    wanted.size = 2 * BLOCK
    memory = ok(driver.cuImportExternalMemory(wanted))
    ok(driver.cuMemRelease(handle))
    return memory


def picture_of(memory: Any) -> Any:
    picture = driver.CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC()
    picture.arrayDesc = descriptor(64, 64)
    picture.numLevels = 1
    return ok(driver.cuExternalMemoryGetMappedMipmappedArray(memory, picture))


def mapped(memory: Any) -> tuple[Any, Any]:
    """A buffer and an image of an import that is destroyed itself."""
    piece = driver.CUDA_EXTERNAL_MEMORY_BUFFER_DESC()
    piece.size = 1000
    both = ok(driver.cuExternalMemoryGetMappedBuffer(memory, piece)), picture_of(memory)
    ok(driver.cuDestroyExternalMemory(memory))
    return both


def external() -> None:
    begin()
    whole = free_bytes()
    memory = imported()
    piece = driver.CUDA_EXTERNAL_MEMORY_BUFFER_DESC()
    piece.offset, piece.size = BLOCK, 1000
    at = ok(driver.cuExternalMemoryGetMappedBuffer(memory, piece))
    ok(driver.cuMemsetD8(at, 5, 1000))
    assert peek(int(at), 2) == b"\5\5"
    image = picture_of(memory)
    assert free_bytes() == whole - 2 * BLOCK
    ok(driver.cuDestroyExternalMemory(memory))
    ok(driver.cuMipmappedArrayDestroy(image))
    assert free_bytes() == whole - 2 * BLOCK, "the buffer holds it"
    ok(driver.cuMemFree(at))
    assert free_bytes() == whole
    at, image = mapped(imported())
    ok(driver.cuMemFree(at))
    assert free_bytes() == whole - 2 * BLOCK, "the image holds it"
    ok(driver.cuMipmappedArrayDestroy(image))
    assert free_bytes() == whole


def external_in_a_context() -> None:
    """NVIDIA counts imports among the resources that a context takes along."""
    begin()
    whole = free_bytes()
    context = ok(driver.cuCtxCreate(None, 0, 0))
    imported()
    mapped(imported())
    ok(driver.cuCtxDestroy(context))
    assert free_bytes() == whole


def descriptors() -> None:
    """What is exported lives while any copy of its descriptor is open: sent or inherited too."""
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
    each.__name__: each
    for each in (
        life,
        access,
        elsewhere,
        shared,
        descriptors,
        fabric,
        multicast,
        arrays,
        mipmaps,
        tiles,
        external,
        external_in_a_context,
    )
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]()
