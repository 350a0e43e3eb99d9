"""cuMemGetInfo with a NULL argument, over a driver that allows it, shows the limit."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from gpuslice.contract import grant_file
from shim import region
from tests.shim.conftest import GIB, Host
from tests.shim.drivers import DRIVERS, build_driver

pytestmark = pytest.mark.sim

_DRIVER: Final = f"""
enum {{ GPUS = 1 }};
#include "{DRIVERS / "small_driver.h"}"
static char context;
int cuCtxSetCurrent(void *given);
int cuCtxSetCurrent(void *given) {{ (void)given; current = &context; return 0; }}
int cuMemGetInfo(unsigned *free_bytes, unsigned *total_bytes);
int cuMemGetInfo(unsigned *free_bytes, unsigned *total_bytes)
{{
	if (free_bytes) *free_bytes = 3u << 30;
	if (total_bytes) *total_bytes = ~0u;
	return 0;
}}
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{{
	if (free_bytes) *free_bytes = 79ull << 30;
	if (total_bytes) *total_bytes = 80ull << 30;
	return 0;
}}
"""


def test_one_null_argument_shows_no_more_than_the_limit(library: Path, tmp_path: Path) -> None:
    host = Host(library, build_driver(tmp_path, _DRIVER).parent)
    region.create(tmp_path, [grant_file.Gpu(f"GPU-{'aa' * 16}", GIB, 100, 0)])
    host.python(
        f"""
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0 and cuda.cuCtxSetCurrent(None) == 0
for given in ((1, 1), (1, 0), (0, 1), (0, 0)):
    sizes = [ctypes.c_size_t(7), ctypes.c_size_t(7)]
    arguments = (ctypes.byref(one) if use else None for one, use in zip(sizes, given))
    assert cuda.cuMemGetInfo_v2(*arguments) == 0
    expected = [{GIB} if use else 7 for use in given]
    assert [one.value for one in sizes] == expected, (given, sizes)
""",
        tmp_path,
    )
