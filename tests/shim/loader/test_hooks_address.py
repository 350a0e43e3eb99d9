"""cuGetProcAddress: hooks get wrappers, at every version and flag; the rest is the driver's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.shim.conftest import GIB, Grants, Host

pytestmark = pytest.mark.sim


_GET_PROC = """
import ctypes
library = ctypes.CDLL("libcuda.so.1")
def get(name, version, flags=0, entry="cuGetProcAddress_v2"):
    found, status = ctypes.c_void_p(), ctypes.c_int(-7)
    code = getattr(library, entry)(name, ctypes.byref(found), version, ctypes.c_uint64(flags),
                                   *([ctypes.byref(status)] if entry[-1] == "2" else []))
    return code, found.value, status.value
def address(name):
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
def where(pointer):
    for line in open("/proc/self/maps"):
        span = line.split()[0].split("-")
        if int(span[0], 16) <= pointer < int(span[1], 16):
            return line.split("/")[-1].strip()
"""


def test_the_address_of_a_hook_is_the_wrapper_of_that_version(host: Host, grants: Grants) -> None:
    host.python(
        _GET_PROC
        + """
for name, version, symbol in (
    (b"cuInit", 2000, "cuInit"),
    (b"cuMemAlloc", 2000, "cuMemAlloc"), (b"cuMemAlloc", 3010, "cuMemAlloc"),
    (b"cuMemAlloc", 3020, "cuMemAlloc_v2"), (b"cuMemAlloc", 13000, "cuMemAlloc_v2"),
    (b"cuMemFree", 3010, "cuMemFree"), (b"cuMemFree", 12000, "cuMemFree_v2"),
    (b"cuMemGetInfo", 3010, "cuMemGetInfo"), (b"cuMemGetInfo", 11030, "cuMemGetInfo_v2"),
    (b"cuDeviceTotalMem", 3010, "cuDeviceTotalMem"),
    (b"cuDeviceTotalMem", 12000, "cuDeviceTotalMem_v2"),
    (b"cuGetProcAddress", 11030, "cuGetProcAddress"),
    (b"cuGetProcAddress", 12000, "cuGetProcAddress_v2"),
):
    for flags in (0, 1, 2):
        for entry in ("cuGetProcAddress", "cuGetProcAddress_v2"):
            code, pointer, _ = get(name, version, flags, entry)
            assert code == 0 and pointer == address(symbol), (name, version, flags, entry)
            assert where(pointer) == "libvgpu.so"
code, pointer, status = get(b"cuCtxGetDevice", 12000)
assert (code, status, where(pointer)) == (0, 0, "libcuda.so.1")
""",
        grants.make(GIB),
    )


def test_what_the_driver_does_not_give_stays_not_given(host: Host, grants: Grants) -> None:
    program = (
        _GET_PROC
        + """
for name, version in ((b"cuNoSuch", 12000), (b"cuMemAlloc", 1), (b"cuGetProcAddress", 3000),
                      (b"cuMemAllocAsync", 3000), (b"", 12000), (b"cuMemAlloc_v2", 12000)):
    for flags in (0, 1, 2, 4, 99):
        for entry in ("cuGetProcAddress", "cuGetProcAddress_v2"):
            code, pointer, status = get(name, version, flags, entry)
            print(name, version, flags, code, pointer is None, status)
print(library.cuGetProcAddress_v2(b"cuInit", None, 12000, ctypes.c_uint64(0), None))
found = ctypes.c_void_p()
print(library.cuGetProcAddress_v2(b"cuInit", ctypes.byref(found), 12000, ctypes.c_uint64(0), None))
"""
    )
    assert (
        host.python(program, grants.make(GIB)).stdout == host.python(program, preload=False).stdout
    )


def test_a_driver_that_hands_out_inner_functions_is_still_covered(
    build_dir: Path, library: Path
) -> None:
    """Recognised by a query at each version and flag; and its calls to its own exports end."""
    odd = Host(library, build_dir / "lib" / "tests")
    program = (
        _GET_PROC
        + """
wrapper, old = address("cuMemFree_v2"), address("cuMemFree")
for entry in ("cuGetProcAddress", "cuGetProcAddress_v2"):
    for flags in (0, 1, 2):
        print(get(b"cuMemFree", 12000, flags, entry)[1] == wrapper, where(wrapper),
              get(b"cuMemFree", 3010, flags, entry)[1] == old, where(old))
    print(get(b"cuMemAlloc", 12000, 0, entry)[:2])
"""
    )
    row = "True libvgpu.so True libvgpu.so\n"
    assert odd.python(program).stdout == (row * 3 + "(500, None)\n") * 2
