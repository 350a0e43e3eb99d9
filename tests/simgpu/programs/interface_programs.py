"""Copies of boxes, and what has no effect on the simulated driver:
`python -m tests.simgpu.programs.interface_programs NAME`.

As in cuda_programs.py, each ends with status 0 or with a traceback.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any, Final

from cuda.bindings import driver

from tests.simgpu.programs.cuda_programs import MIB, PTX, R, begin, ok

_ARRAY: Final = driver.CUmemorytype.CU_MEMORYTYPE_ARRAY
_DEVICE: Final = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
_HOST: Final = driver.CUmemorytype.CU_MEMORYTYPE_HOST


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
    """On managed memory: valid ones are accepted, and have no effect."""
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
    """No GPU has access to another's memory, and every query reports that."""
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


PROGRAMS: Final[dict[str, Callable[[], None]]] = {
    program.__name__: program
    for program in (
        boxes,
        hints,
        peers,
        textures,
    )
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]()
