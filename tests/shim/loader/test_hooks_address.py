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
wrapper = address("cuMemFree_v2")
for entry in ("cuGetProcAddress", "cuGetProcAddress_v2"):
    for flags in (0, 1, 2):
        print(get(b"cuMemFree", 12000, flags, entry)[1] == wrapper, where(wrapper),
              get(b"cuMemFree", 3010, flags, entry)[1] == wrapper)
    print(get(b"cuMemAlloc", 12000, 0, entry)[:2])
"""
    )
    row = "True libvgpu.so False\n"
    assert odd.python(program).stdout == (row * 3 + "(500, None)\n") * 2
