"""Unmodified programs over the driver API: cuda.core, numba-cuda and its compiler."""

from __future__ import annotations

import pytest

from tests.simgpu.host import Host

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("name", ["launches", "linked", "buffers", "graphs", "branches"])
def test_cuda_core(idle_host: Host, name: str) -> None:
    idle_host.program("core_programs", name)


@pytest.mark.parametrize("name", ["kernels", "libraries", "streams_and_memories"])
def test_numba(idle_host: Host, name: str) -> None:
    idle_host.program("numba_programs", name)
