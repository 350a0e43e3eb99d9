"""In CUDA 13, each location has initial memory pools. Those of a GPU are charged to that GPU.

Uses tests/shim/c/drivers/located_pools_driver.c, whose first GPU is always current.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice.contract import grant_file
from shim import region
from tests.shim.conftest import GIB, MIB, Host
from tests.shim.drivers import DRIVERS, build_driver

pytestmark = pytest.mark.sim

_PINNED, _MANAGED = 1, 2
_NONE, _DEVICE, _HOST, _HOST_NUMA = range(4)


@pytest.mark.parametrize("question", ["cuMemGetDefaultMemPool", "cuMemGetMemPool"])
@pytest.mark.parametrize(
    ("location", "kind", "charged_mib"),
    [
        ((_HOST, 0), _PINNED, [0, 0]),
        ((_HOST_NUMA, 0), _PINNED, [0, 0]),
        ((_DEVICE, 1), _PINNED, [0, 512]),
        ((_DEVICE, 1), _MANAGED, [0, 512]),
        ((_NONE, 0), _MANAGED, [512, 0]),
    ],
)
def test_a_pool_is_charged_to_the_gpu_of_its_location(
    library: Path,
    tmp_path: Path,
    question: str,
    location: tuple[int, int],
    kind: int,
    charged_mib: list[int],
) -> None:
    driver = build_driver(tmp_path, DRIVERS / "located_pools_driver.c")
    gpus = [grant_file.Gpu(f"GPU-{pair * 16}", GIB, 100, 0) for pair in ("aa", "bb")]
    region.create(tmp_path, gpus)
    Host(library, driver.parent).python(
        f"""
import ctypes, os
from pathlib import Path
from shim import region
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
pool, address = ctypes.c_void_p(), ctypes.c_uint64()
where = (ctypes.c_int * 2)(*{location})
assert cuda.{question}(ctypes.byref(pool), where, {kind}) == 0
for bytes, code in (({512 * MIB}, 0), ({600 * MIB}, {2 if any(charged_mib) else 0})):
    taken = cuda.cuMemAllocFromPoolAsync(ctypes.byref(address), ctypes.c_size_t(bytes), pool, None)
    gpus = region.status(Path(os.environ["GPUSLICE_DIR"]))
    used = [gpu.use.used_bytes / {MIB} for gpu in gpus]
    assert (taken, used) == (code, {charged_mib}), (taken, used)
""",
        tmp_path,
    )
