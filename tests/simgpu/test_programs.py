"""Real programs over the driver API run as they are: cuda.core, numba-cuda and its compiler."""

from __future__ import annotations

import pytest

from tests.simgpu.host import Host
from tests.simgpu.test_pools import run_program

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("name", ["launches", "linked", "buffers", "graphs", "branches"])
def test_cuda_core(idle_host: Host, name: str) -> None:
    run_program(idle_host, "core_programs", name)


@pytest.mark.parametrize("name", ["kernels", "libraries", "streams_and_memories"])
def test_numba(idle_host: Host, name: str) -> None:
    run_program(idle_host, "numba_programs", name)
