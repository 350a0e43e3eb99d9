"""Charges over a driver's unusual answers: refused frees, implicit frees, wide rows.

Over tests/shim/c/drivers/old_driver.c, whose frees the program controls.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice.contract import grant_file
from shim import region
from tests.shim.conftest import Host
from tests.shim.drivers import DRIVERS, build_driver

pytestmark = pytest.mark.sim

_BLOCK_BYTES = 2 << 20
_LIMIT_BYTES = 8 * _BLOCK_BYTES
_BEGIN = f"""
import ctypes, os
from pathlib import Path
from shim import region
LIMIT, BLOCK = {_LIMIT_BYTES}, {_BLOCK_BYTES}
library = ctypes.CDLL("libcuda.so.1")
assert library.cuInit(0) == 0
wide, size = ctypes.c_uint64, ctypes.c_size_t
def used():
    return region.status(Path(os.environ["GPUSLICE_DIR"]))[0].use.used_bytes
def alloc(bytes):
    address = wide()
    return library.cuMemAlloc_v2(ctypes.byref(address), size(bytes)), address
"""


@pytest.fixture(scope="module")
def old_host(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Host:
    driver = build_driver(tmp_path_factory.mktemp("old"), DRIVERS / "old_driver.c")
    return Host(library, driver.parent)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    gpu = grant_file.Gpu("GPU-" + "aa" * 16, _LIMIT_BYTES, 100, 0)
    region.create(tmp_path, [gpu])
    return tmp_path


_PROGRAMS = {
    "a free that failed can succeed later and counts once": """
_, address = alloc(4096)
library.old_driver_set(1)
assert [library.cuMemFree_v2(address) for _ in range(3)] == [214] * 3
assert used() == BLOCK, "the driver holds it still"
assert alloc(LIMIT - BLOCK + 1)[0] == 2
library.old_driver_set(0)
assert library.cuMemFree_v2(address) == 0
assert used() == 0
assert library.cuMemFree_v2(address) == 0, "this driver does not mind"
assert used() == 0
""",
    "what the driver frees by itself is refunded when its address comes again": """
_, first = alloc(4096)
library.old_driver_forget()
assert used() == BLOCK, "not reported to us: too strict until then"
_, again = alloc(512)
assert again.value == first.value
assert used() == BLOCK
assert library.cuMemFree_v2(again) == 0
assert used() == 0
""",
}


@pytest.mark.parametrize("program", _PROGRAMS.values(), ids=_PROGRAMS)
def test_charges_over_unusual_answers(old_host: Host, directory: Path, program: str) -> None:
    old_host.python(_BEGIN + program, directory)


def test_row_10_a_pitch_beyond_what_was_reserved_is_charged_or_refused(
    old_host: Host, directory: Path
) -> None:
    """This driver's rows are 64 KiB apart, where 512 bytes were reserved for each."""
    old_host.python(
        _BEGIN
        + """
def pitched(rows):
    address, pitch = wide(), size()
    code = library.cuMemAllocPitch_v2(
        ctypes.byref(address), ctypes.byref(pitch), size(100), size(rows), 4)
    return code, address
code, address = pitched(100)
assert (code, used()) == (0, 4 * BLOCK)
assert pitched(200)[0] == 2
assert used() == 4 * BLOCK, "what did not fit was freed and refunded"
assert library.cuMemFree_v2(address) == 0
assert used() == 0
""",
        directory,
    )
