"""Rows of docs/library.md that can be reproduced here."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.shim.conftest import GIB, MIB, Grants, Host

pytestmark = pytest.mark.sim


def test_a_driver_of_the_image_is_recognized_by_its_soname(
    host: Host, grants: Grants, tmp_path: Path
) -> None:
    """cuda-compat provides it: another file of another name, opened by its path."""
    compat = tmp_path / "compat" / "libcuda.so.999.1"
    compat.parent.mkdir()
    shutil.copy(host.driver_dir / "libcuda.so.1", compat)
    host.python(
        f"""
import ctypes
cuda = ctypes.CDLL({str(compat)!r})
context, address = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
answer = cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t({GIB + 1}))
assert answer == 2, answer
assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t({2 * MIB})) == 0
""",
        grants.make(GIB),
    )


def test_export_tables_are_the_drivers(host: Host, grants: Grants) -> None:
    """The driver's own answer, unchanged, with and without the library."""
    program = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
table = ctypes.c_void_p()
print(cuda.cuGetExportTable(ctypes.byref(table), bytes(16)), table.value)
"""
    ours = host.python(program, grants.make(GIB)).stdout
    assert ours == host.python(program, preload=False).stdout
