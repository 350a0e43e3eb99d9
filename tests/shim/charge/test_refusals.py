"""A refused call only returns a code: the driver's, if the driver would refuse the call too."""

from __future__ import annotations

import json

import pytest

from tests.shim.clients import CUDA
from tests.shim.conftest import GIB, MIB, Grants, Host, Limited, used
from tests.shim.exact import EXACT

pytestmark = pytest.mark.sim

# A call's result holds SENTINEL before the call.
BEGIN = f"""{EXACT}
import ctypes
library = ctypes.CDLL("libcuda.so.1")
SENTINEL = 0x5A5A5A5A5A5A5A5A
U, S, P = ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p
class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]
class Prop(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", Location),
                ("metadata", P), ("flags", ctypes.c_ubyte * 8)]
class Plane(ctypes.Structure):
    _fields_ = [("width", S), ("height", S), ("format", ctypes.c_int), ("channels", U)]
class Solid(ctypes.Structure):
    _fields_ = [("width", S), ("height", S), ("depth", S), ("format", ctypes.c_int),
                ("channels", U), ("flags", U)]
class External(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("fd", ctypes.c_int), ("other", P),
                ("size", ctypes.c_uint64), ("flags", U), ("reserved", U * 16)]
def prop(kind=1, device=0):
    return ctypes.byref(Prop(kind, 0, Location(1, device), None))
def plane(width, height=0, format=0x20, channels=4):
    return ctypes.byref(Plane(width, height, format, channels))
def solid(width, height=0, depth=0, format=0x20, channels=4, flags=0):
    return ctypes.byref(Solid(width, height, depth, format, channels, flags))
def call(name, *arguments, outs=1):
    "The code, and whether what the program has is as it was."
    kept = [ctypes.c_uint64(SENTINEL) for _ in range(outs)]
    code = library[name](*(ctypes.byref(out) for out in kept), *arguments)
    return code, [out.value for out in kept] == [SENTINEL] * outs
pool = P(int(must(d.cuDeviceGetDefaultMemPool(0))))
def answers(calls):
    return {{name: eval(f"call({{arguments}})") for name, arguments in calls.items()}}
"""

# Each request would fit on the GPU, but not into the rest of the limit.
_TOO_LARGE = {
    "cuMemAlloc_v2": '"cuMemAlloc_v2", S(16 * MIB)',
    "a small cuMemAlloc_v2": '"cuMemAlloc_v2", S(MIB + 512)',
    "cuMemAllocManaged": '"cuMemAllocManaged", S(16 * MIB), 1',
    "cuMemAllocPitch_v2": '"cuMemAllocPitch_v2", S(4096), S(4096), 4, outs=2',
    "cuMemAllocAsync": '"cuMemAllocAsync", S(64 * MIB), None',
    "cuMemAllocFromPoolAsync": '"cuMemAllocFromPoolAsync", S(64 * MIB), pool, None',
    "cuArrayCreate_v2": '"cuArrayCreate_v2", plane(2048, 2048)',
    "cuArray3DCreate_v2": '"cuArray3DCreate_v2", solid(2048, 2048)',
    "cuMipmappedArrayCreate": '"cuMipmappedArrayCreate", solid(2048, 2048), 3',
    "cuMemCreate": '"cuMemCreate", S(16 * MIB), prop(), ctypes.c_uint64(0)',
    "cuCtxCreate": '"cuCtxCreate", 0, 0',
    "cuCtxCreate_v2": '"cuCtxCreate_v2", 0, 0',
    "cuCtxCreate_v3": '"cuCtxCreate_v3", None, 0, 0, 0',
    "cuCtxCreate_v4": '"cuCtxCreate_v4", None, 0, 0',
}


def test_what_does_not_fit_leaves_what_the_program_has_as_it_was(gpu_limited: Limited) -> None:
    gpu_limited(GIB)(f"""
must(d.cuMemAlloc(1024))
must(d.cuMemAlloc({GIB} - MIB - charged()))
full = held(), charged()
said = answers({_TOO_LARGE})
assert said == dict.fromkeys(said, (2, True)), said
assert (held(), charged()) == full, (held(), charged(), full)
""")


# Malformed calls. The limit is used up while they are made.
_MALFORMED = {
    "no bytes": '"cuMemAlloc_v2", S(0)',
    "no managed bytes": '"cuMemAllocManaged", S(0), 1',
    "managed by other flags": '"cuMemAllocManaged", S(16 * MIB), 8',
    "no width": '"cuMemAllocPitch_v2", S(0), S(16), 4, outs=2',
    "no height": '"cuMemAllocPitch_v2", S(4096), S(0), 4, outs=2',
    "an element of three": '"cuMemAllocPitch_v2", S(65536), S(65536), 3, outs=2',
    "a pitch past the end": '"cuMemAllocPitch_v2", S(2**64 - 1), S(1), 4, outs=2',
    "a product past the end": '"cuMemAllocPitch_v2", S(2**40), S(2**40), 4, outs=2',
    "more than there are addresses": '"cuMemAlloc_v2", S(2**64 - 1)',
    "no bytes of a pool": '"cuMemAllocAsync", S(0), None',
    "bytes of no pool": '"cuMemAllocFromPoolAsync", S(64 * MIB), None, None',
    "an array of nothing": '"cuArrayCreate_v2", plane(0)',
    "a plane too wide": '"cuArrayCreate_v2", plane(2**20, 2**12)',
    "a product past all ends": '"cuArrayCreate_v2", plane(2**62, 2**62)',
    "no channels": '"cuArrayCreate_v2", plane(16384, 16384, channels=0)',
    "no such format": '"cuArrayCreate_v2", plane(16384, 16384, format=0x7777)',
    "a solid without height": '"cuArray3DCreate_v2", solid(16384, 0, 16384)',
    "a cube that is none": '"cuArray3DCreate_v2", solid(16384, 8192, 6, flags=4)',
    "flags of no meaning": '"cuArray3DCreate_v2", solid(16384, 16384, flags=0x10000)',
    "no levels": '"cuMipmappedArrayCreate", solid(16384, 16384), 0',
    "levels of a plane too wide": '"cuMipmappedArrayCreate", solid(2**20, 4096), 3',
    "no physical bytes": '"cuMemCreate", S(0), prop(), ctypes.c_uint64(0)',
    "a part of a granule": '"cuMemCreate", S(64 * MIB + 1), prop(), ctypes.c_uint64(0)',
    "flags of cuMemCreate": '"cuMemCreate", S(64 * MIB), prop(), ctypes.c_uint64(64)',
    "memory of no type": '"cuMemCreate", S(64 * MIB), prop(kind=9), ctypes.c_uint64(0)',
    "memory of no GPU": '"cuMemCreate", S(64 * MIB), prop(device=77), ctypes.c_uint64(0)',
    "an import of no type":
        '"cuImportExternalMemory", ctypes.byref(External(99, -1, None, 64 * MIB))',
    "a context of no GPU": '"cuCtxCreate_v2", 0, 77',
    "a context of odd flags": '"cuCtxCreate_v2", 0x4000, 0',
    "a module that is none": '"cuModuleLoadData", b"nothing"',
}  # fmt: skip


def test_what_is_malformed_is_refused_by_the_drivers_own_code_at_the_limit_too(
    gpu_host: Host, grants: Grants
) -> None:
    """The library returns the same code as the driver alone, and leaves results untouched."""
    ask = f"print(json.dumps(answers({_MALFORMED})))\n"
    fill = f"must(d.cuMemAlloc({GIB - 300 * MIB}))\n"
    bare = json.loads(gpu_host.python(BEGIN + ask, grants.make(GIB), preload=False).stdout)
    ours = json.loads(gpu_host.python(BEGIN + fill + ask, grants.make(GIB)).stdout)
    assert ours == bare
    assert all(untouched for _, untouched in ours.values())
    assert all(code for code, _ in bare.values())


def test_what_is_given_all_the_same_is_undone(gpu_limited: Limited) -> None:
    """A later driver may accept a call that we take for malformed. If its memory exceeds the limit,
    the library frees it. Memory that the driver refuses to free stays charged."""
    gpu_limited(GIB)(f"""
must(d.cuMemAlloc(1024))
must(d.cuMemAlloc({GIB} - charged()))
fail("cuMemGetAllocationGranularity", 1, 100)
assert call("cuMemCreate", S(64 * MIB), prop(), ctypes.c_uint64(0)) == (2, True)
same({GIB})
fail("cuMemFree_v2", 999)
assert call("cuMemAlloc_v2", S(MIB + 512)) == (2, True)
same({GIB + 2 * MIB})
""")


def test_allocations_of_2009_are_refused_under_a_limit(host: Host, grants: Grants) -> None:
    calls = {
        "cuMemAlloc": '"cuMemAlloc", U(MIB)',
        "cuMemAllocPitch": '"cuMemAllocPitch", U(4096), U(16), 4, outs=2',
        "cuArrayCreate": '"cuArrayCreate", ctypes.byref((U * 4)(64, 64, 0x20, 4))',
        "cuArray3DCreate": '"cuArray3DCreate", ctypes.byref((U * 6)(64, 64, 0, 0x20, 4, 0))',
    }
    ask = f"must(d.cuMemAlloc(1024))\nprint(json.dumps(answers({calls})))\n"
    said = host.python(BEGIN + ask, grants.make(GIB)).stdout
    assert json.loads(said) == {call: [801, True] for call in calls}
    unlimited = BEGIN.replace(EXACT, f"{CUDA}import json\n")
    said = host.python(unlimited + ask).stdout
    assert json.loads(said) == {call: [0, False] for call in calls}


def test_before_init_the_drivers_own_error_is_returned(host: Host, grants: Grants) -> None:
    program = """
import ctypes
library = ctypes.CDLL("libcuda.so.1")
pointer, size = ctypes.c_uint64(), ctypes.c_size_t()
print(library.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(512)),
      library.cuMemGetInfo_v2(ctypes.byref(size), ctypes.byref(size)),
      library.cuDeviceTotalMem_v2(ctypes.byref(size), 0),
      library.cuMemFree_v2(ctypes.c_uint64(512)))
"""
    directory = grants.make(GIB)
    assert host.python(program, directory).stdout == host.python(program, preload=False).stdout
    assert used(directory) == 0
