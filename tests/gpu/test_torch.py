"""PyTorch up to its limit with each of its allocators: it gets the error that it knows.

Skipped where there is no torch; GPUSLICE_TORCH names another interpreter that has it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

import pytest

from tests.gpu.conftest import Card

pytestmark = pytest.mark.sim
PYTHON: Final = os.environ.get("GPUSLICE_TORCH", sys.executable)
ALLOCATORS: Final = {
    "caching": "",
    "cuda_malloc_async": "backend:cudaMallocAsync",
    "expandable_segments": "expandable_segments:True",
}
_PROGRAM: Final = """
import sys, torch
MIB = 2**20
limit = int(sys.argv[1])
free, total = torch.cuda.mem_get_info()
assert total == limit and 0 < free <= total, (free, total, limit)
def fill():
    held = []
    try:
        while len(held) < 1024:
            held.append(torch.empty(16 * MIB, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError:
        return held
    raise SystemExit("never refused")
held = fill()
filled = len(held) * 16 * MIB
assert free // 2 < filled <= free, (filled, free)
del held
torch.cuda.synchronize()
torch.cuda.empty_cache()
ones = torch.ones(1024, 1024, device="cuda")
assert float((ones + ones).sum()) == 2 * 1024 * 1024
del ones
assert fill(), "and again"
print(f"FIGURE torch {torch.__version__}: filled {filled} of {free}")
"""


@pytest.fixture(scope="module")
def torch_python() -> str:
    asked = [PYTHON, "-c", "import torch"]
    if subprocess.run(asked, capture_output=True, check=False).returncode:
        pytest.skip(f"{PYTHON} has no torch (GPUSLICE_TORCH=python that has it)")
    return PYTHON


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_torch_is_refused_as_it_knows(card: Card, torch_python: str, allocator: str) -> None:
    done = subprocess.run(
        [torch_python, "-c", _PROGRAM, str(card.limit_bytes)],
        env={
            **card.host.environment(card.grant_dir),
            "PYTORCH_CUDA_ALLOC_CONF": ALLOCATORS[allocator],
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done
    card.note(done.stdout)
