"""Initial pools of a location (CUDA 13) are charged to the GPU they lie on, if any.

Over tests/shim/c/drivers/located_pools_driver.c, whose first GPU is always current.
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


@pytest.fixture(scope="module")
def located_host(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Host:
    driver = build_driver(tmp_path_factory.mktemp("located"), DRIVERS / "located_pools_driver.c")
    return Host(library, driver.parent)


@pytest.mark.parametrize("question", ["cuMemGetDefaultMemPool", "cuMemGetMemPool"])
@pytest.mark.parametrize(
    ("location", "kind", "charged_gpu"),
    [
        ((_HOST, 0), _PINNED, None),
        ((_HOST_NUMA, 0), _PINNED, None),
        ((_DEVICE, 0), _PINNED, 0),
        ((_DEVICE, 1), _PINNED, 1),
        ((_DEVICE, 0), _MANAGED, 0),
        ((_DEVICE, 1), _MANAGED, 1),
        ((_NONE, 0), _MANAGED, 0),
    ],
)
def test_a_pool_is_charged_to_the_gpu_of_its_location(
    located_host: Host,
    tmp_path: Path,
    question: str,
    location: tuple[int, int],
    kind: int,
    charged_gpu: int | None,
) -> None:
    region.create(
        tmp_path,
        [grant_file.Gpu(f"GPU-{pair * 16}", GIB, 100, 0) for pair in ("aa", "bb")],
    )
    expected = [512 * MIB if gpu == charged_gpu else 0 for gpu in range(2)]
    located_host.python(
        f"""
import ctypes, os
from pathlib import Path
from shim import region
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
pool, address = ctypes.c_void_p(), ctypes.c_uint64()
where = (ctypes.c_int * 2)(*{location})
def take(bytes):
    return cuda.cuMemAllocFromPoolAsync(
        ctypes.byref(address), ctypes.c_size_t(bytes), pool, None)
def used():
    return [gpu.use.used_bytes for gpu in region.status(Path(os.environ["GPUSLICE_DIR"]))]
assert cuda.{question}(ctypes.byref(pool), where, {kind}) == 0
assert take({512 * MIB}) == 0
assert used() == {expected}, used()
assert take({600 * MIB}) == {0 if charged_gpu is None else 2}
assert used() == {expected}, used()
""",
        tmp_path,
    )
