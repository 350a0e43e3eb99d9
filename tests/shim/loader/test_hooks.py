"""cuda-bindings, unmodified, under the library: the limit holds, and is the only difference.

Each test is a program run in a process of its own; its assertions are those of a client.
"""

from __future__ import annotations

import pytest

from shim import region
from tests.shim.clients import CUDA, NVML
from tests.shim.conftest import GIB, MIB, Grants, Host

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("limit_bytes", [GIB + 76, GIB - 1, 2 * MIB + 1, 2 * MIB - 1])
def test_what_is_called_free_can_be_allocated_at_once(
    host: Host, grants: Grants, limit_bytes: int
) -> None:
    """A third of a GPU is no whole number of blocks, the GPU's unit of allocation."""
    host.python(
        CUDA
        + NVML
        + f"""
whole = {limit_bytes} // (2 * MIB) * 2 * MIB
assert must(d.cuMemGetInfo()) == (whole, {limit_bytes})
assert pynvml.nvmlDeviceGetMemoryInfo(gpu(0)).free == whole
if whole:
    must(d.cuMemAlloc(whole))
assert d.cuMemAlloc(1)[0] == OOM
assert must(d.cuMemGetInfo()) == (0, {limit_bytes})
""",
        grants.make(limit_bytes),
    )


_PROGRAMS = {
    "a gpu outside the grant has no memory": """
assert must(d.cuDeviceGetCount()) == 2
assert must(d.cuDeviceTotalMem(1)) == 0
use(1)
assert must(d.cuMemGetInfo()) == (0, 0)
assert d.cuMemAlloc(1)[0] == OOM
use(0)
must(d.cuMemAlloc(GIB))
""",
    "each gpu has its own limit": """
use(1)
assert must(d.cuMemGetInfo()) == (512 * MIB, 512 * MIB)
pointer = must(d.cuMemAlloc(512 * MIB))
assert d.cuMemAlloc(1)[0] == OOM
use(0)
assert must(d.cuMemGetInfo()) == (GIB, GIB)
must(d.cuMemFree(pointer))  # of the other gpu: what counts is where it was allocated
assert must(d.cuMemGetInfo()) == (GIB, GIB)
use(1)
assert must(d.cuMemGetInfo()) == (512 * MIB, 512 * MIB)
""",
}
_LIMITS = {
    "each gpu has its own limit": (
        GIB,
        512 * MIB,
    ),
}


@pytest.mark.parametrize("name", _PROGRAMS)
def test_a_client_sees_the_limit_and_nothing_else(host: Host, grants: Grants, name: str) -> None:
    """Its assertions are a client's."""
    host.python(CUDA + _PROGRAMS[name], grants.make(*_LIMITS.get(name, (GIB,))))


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
    assert region.status(directory)[0].use.used_bytes == 0
