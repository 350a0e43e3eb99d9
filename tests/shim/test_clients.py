"""Unmodified third-party programs reach their limit, and report it by their usual error."""

from __future__ import annotations

import pytest

from tests.shim.conftest import GIB, Limited

pytestmark = pytest.mark.sim

BEGIN = """
import pytest, warnings
warnings.simplefilter("ignore")
import _numba_cuda_redirector
import numpy as np
from numba import cuda
MIB = 2**20

@cuda.jit
def add_one(given, taken):
    i = cuda.grid(1)
    if i < given.size:
        taken[i] = given[i] + 1

def launch():
    given = cuda.to_device(np.arange(1024, dtype=np.float32))
    taken = cuda.device_array_like(given)
    add_one[4, 256](given, taken)
    cuda.synchronize()
    assert taken.copy_to_host().shape == (1024,)
"""


def test_numba_compiles_launches_and_fills_its_limit(limited: Limited) -> None:
    limited(GIB)("""
from numba.cuda.cudadrv.driver import CudaAPIError
launch()
free, total = cuda.current_context().get_memory_info()
assert total == 2**30 and 0 < free <= total, (free, total)
held = []
with pytest.raises(CudaAPIError) as refused:
    while len(held) < 64:
        held.append(cuda.device_array(64 * MIB, np.uint8))
assert refused.value.code == 2
# At the refusal, numba frees the arrays of the first launch. So one more array may fit.
assert 0 <= len(held) - free // (64 * MIB) <= 1, (len(held), free)
held.clear()
launch()
held = [cuda.device_array(64 * MIB, np.uint8) for _ in range(free // (64 * MIB))]
""")
