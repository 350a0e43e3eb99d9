"""Arrays and external memory under the library. The charge equals the GPU's memory in use."""

from __future__ import annotations

from typing import Final

import pytest

from tests.shim.conftest import GIB, Limited
from tests.shim.exact import PHYSICAL, SHAPE

pytestmark = pytest.mark.sim

BEGIN: Final = f"""{PHYSICAL}{SHAPE}
LAYERED, CUBEMAP, SPARSE, DEFERRED = 0x01, 0x04, 0x40, 0x80
def figures(gpu=0):
    return held(gpu) - before[gpu][0], charged(gpu) - before[gpu][1]
def close(what):
    taken, paid = figures()
    assert taken > 0 and 0 <= paid - taken <= 0.02 * taken, (what, taken, paid)
SHAPES = [
    shape(131072, channels=4),
    shape(1920, 1080, format=F.CU_AD_FORMAT_UNSIGNED_INT8, channels=4),
    shape(3000, 2001, format=F.CU_AD_FORMAT_HALF, channels=2),
    shape(200, 300, 90),
    shape(1000, 1000, 5, flags=LAYERED),
    shape(256, 256, 12, flags=CUBEMAP | LAYERED),
    shape(2048, 2048, format=F.CU_AD_FORMAT_BC7_UNORM, channels=4),
]
def external(handle, bytes):
    wanted = d.CUDA_EXTERNAL_MEMORY_HANDLE_DESC()
    wanted.type = d.CUexternalMemoryHandleType.CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD
    global last_fd
    last_fd = wanted.handle.fd = int(must(d.cuMemExportToShareableHandle(handle, FD, 0)))
    wanted.size = bytes
    return d.cuImportExternalMemory(wanted)
def imported():
    handle = create(4 * BLOCK, shareable=FD)
    memory = must(external(handle, 4 * BLOCK))
    release(handle)
    return memory
def buffer(memory, offset=0):
    piece = d.CUDA_EXTERNAL_MEMORY_BUFFER_DESC()
    piece.offset, piece.size = offset, 1000
    return d.cuExternalMemoryGetMappedBuffer(memory, piece)
def image(memory):
    picture = d.CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC()
    picture.arrayDesc, picture.numLevels = shape(64, 64), 1
    return d.cuExternalMemoryGetMappedMipmappedArray(memory, picture)
"""


def test_row_14_arrays_of_every_shape(limited: Limited) -> None:
    limited(GIB)("""
for made in SHAPES:
    array = must(d.cuArray3DCreate(made))
    close(made)
    after(d.cuArrayDestroy(array), 0)
    if not made.Depth:
        flat = d.CUDA_ARRAY_DESCRIPTOR()
        flat.Width, flat.Height = made.Width, made.Height
        flat.Format, flat.NumChannels = made.Format, made.NumChannels
        array = must(d.cuArrayCreate(flat))
        close(flat)
        after(d.cuArrayDestroy(array), 0)
    for levels in (1, 4, 99):
        mipmap = must(d.cuMipmappedArrayCreate(made, levels))
        close((made, levels))
        must(d.cuMipmappedArrayGetLevel(mipmap, 0))
        after(d.cuMipmappedArrayDestroy(mipmap), 0)
""")


def test_row_14_arrays_stop_at_the_limit(limited: Limited) -> None:
    limited(GIB)("""
fit = (GIB - before[0][1]) // (64 * MIB)
made = [must(d.cuArray3DCreate(shape(4096, 4096))) for _ in range(fit)]
refused(d.cuMipmappedArrayCreate(shape(4096, 4096), 3), fit * 64 * MIB)
for array in made:
    must(d.cuArrayDestroy(array))
refused(d.cuArrayDestroy(array), 0, d.CUresult.CUDA_ERROR_INVALID_HANDLE)
""")


_PROGRAMS = {
    "where the driver does not say the bytes of the elements are charged": """
# Drivers before CUDA 11.6 refuse these queries. A mipmap's charge is then up to twice its size.
for call in ("cuArrayGetMemoryRequirements", "cuMipmappedArrayGetMemoryRequirements"):
    fail(call, 801, 10)
array = must(d.cuArray3DCreate(shape(4096, 4096, channels=4)))
assert figures()[1] == 256 * MIB
must(d.cuArrayDestroy(array))
mipmap = must(d.cuMipmappedArrayCreate(shape(2048, 2048, channels=2), 3))
assert figures()[1] == 64 * MIB
after(d.cuMipmappedArrayDestroy(mipmap), 0)
for call in ("cuArrayGetMemoryRequirements", "cuMipmappedArrayGetMemoryRequirements"):
    fail(call, 801, 0)
""",
    "tiles hold the memory that backs them": """
context = must(d.cuCtxCreate(None, 0, 0))
before = [(held(gpu), charged(gpu)) for gpu in range(len(before))]
mipmap = must(d.cuMipmappedArrayCreate(shape(4096, 4096, flags=SPARSE), 99))
array = must(d.cuArray3DCreate(shape(4096, 4096, flags=DEFERRED)))
took(0)
tile = must(d.cuMipmappedArrayGetSparseProperties(mipmap)).tileExtent
def part(handle, x=0, unmaps=False):
    info = d.CUarrayMapInfo()
    info.resourceType = d.CUresourcetype.CU_RESOURCE_TYPE_MIPMAPPED_ARRAY
    info.resource.mipmap = mipmap
    info.subresourceType = d.CUarraySparseSubresourceType(0)
    where = info.subresource.sparseLevel
    where.offsetX, where.extentWidth, where.extentHeight = x * tile.width, tile.width, tile.height
    where.extentDepth = 1
    info.memOperationType = d.CUmemOperationType(2 if unmaps else 1)
    info.memHandleType = d.CUmemHandleType.CU_MEM_HANDLE_TYPE_GENERIC
    info.memHandle.memHandle = handle
    return info
first, second = create(BLOCK), create(BLOCK)
must(d.cuMemMapArrayAsync([part(first), part(second, 1)], 2, 0))
release(first)
after(release(second), 2 * BLOCK)
after(d.cuMemMapArrayAsync([part(0, unmaps=True)], 1, 0), BLOCK)
third = create(BLOCK)
after(d.cuMemMapArrayAsync([part(third, 1)], 1, 0), BLOCK)
after(release(third), BLOCK)
after(d.cuMipmappedArrayDestroy(mipmap), 0)
after(d.cuArrayDestroy(array), 0)
mipmap = must(d.cuMipmappedArrayCreate(shape(4096, 4096, flags=SPARSE), 99))
fourth = create(BLOCK)
must(d.cuMemMapArrayAsync([part(fourth)], 1, 0))
after(release(fourth), BLOCK)
use(0)
overhead = figures()
must(d.cuCtxDestroy(context))
assert overhead[0] - figures()[0] == overhead[1] - figures()[1] >= BLOCK
""",
    "external memory is charged the size that the program declares": """
handle = create(64 * BLOCK, shareable=FD)
for size in (1, BLOCK, 64 * BLOCK):
    memory = must(external(handle, size))
    assert figures()[1] == 64 * BLOCK + max(size, BLOCK), "the exporter's and the importer's"
    must(d.cuDestroyExternalMemory(memory))
for size in (0, 65 * BLOCK):
    assert external(handle, size)[0] == INVALID
    os.close(last_fd)
assert external(handle, 2 * GIB)[0] == OOM
os.fstat(last_fd), os.close(last_fd)
after(release(handle), 0)
""",
    "what is mapped of external memory keeps its charge": """
# Destroying an import frees no memory while a buffer or an image of the import is mapped.
memory = imported()
first, second, picture = must(buffer(memory)), must(buffer(memory, BLOCK)), must(image(memory))
refused(buffer(memory, 4 * BLOCK), 4 * BLOCK, INVALID)
must(d.cuMemFree(first))
after(d.cuDestroyExternalMemory(memory), 4 * BLOCK)
must(d.cuMemFree(second))
refused(d.cuMemFree(second), 4 * BLOCK, INVALID)
after(d.cuMipmappedArrayDestroy(picture), 0)
""",
    "external memory is freed with its context": """
for destroyed in (False, True):
    context = must(d.cuCtxCreate(None, 0, 0))
    memory = imported()
    must(buffer(memory)), must(image(memory))
    if destroyed:
        must(d.cuDestroyExternalMemory(memory))
    after(d.cuCtxDestroy(context), 0)
""",
}


@pytest.mark.parametrize("name", _PROGRAMS)
def test_a_program_is_charged_its_arrays_and_what_it_imports(limited: Limited, name: str) -> None:
    limited(GIB)(_PROGRAMS[name])
