"""Memory limits that the driver keeps, on this machine's GPU: release 615 or newer, as root.

A program without the library runs in a control group with a limit of 1 GiB. The same test runs on a
simulated driver (tests/simgpu/test_memory_limits.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from lab.node import cgroups
from tests.gpu.conftest import Gpu, machine

pytestmark = pytest.mark.sim
MIB = 1 << 20
_LIMIT = 1024 * MIB

_TAKES = """
from cuda.bindings import driver as d
assert d.cuInit(0)[0] == 0
device = d.cuDeviceGet(0)[1]
context = d.cuDevicePrimaryCtxRetain(device)[1]
d.cuCtxSetCurrent(context)
_, free, total = d.cuMemGetInfo()
taken = 0
while d.cuMemAlloc(2 << 20)[0] == 0:
    taken += 2
print("FIGURE", f"total {total >> 20} MiB, free {free >> 20} MiB, taken {taken} MiB")
assert total <= 1 << 30, total
assert taken <= 1024, taken
assert taken >= (free >> 20) - 64, (taken, free)
"""


@pytest.fixture
def group() -> Iterator[Path]:
    if os.geteuid() or not (cgroups.ROOT / "cgroup.controllers").exists():
        pytest.skip("needs root and cgroup v2")
    made = cgroups.ROOT / f"gpuslice-limits-{os.getpid()}"
    made.mkdir()
    yield made
    cgroups.remove(made.name, 10)


def test_gpu_a_group_has_its_limit(gpu: Gpu, group: Path) -> None:
    pynvml.nvmlInit()
    if not hasattr(pynvml.nvmlLib, "nvmlDeviceSetMemoryLimits_v1"):
        pytest.skip(f"driver {gpu.facts.driver_version}: must be 615 or newer")
    handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.facts.uuid)
    limits = pynvml.c_nvmlSetMemoryLimits_v1_t(str(group).encode(), 0, _LIMIT)
    pynvml.nvmlDeviceSetMemoryLimits_v1(handle, limits)
    now = pynvml.c_nvmlGetMemoryLimits_v1_t(str(group).encode())
    pynvml.nvmlDeviceGetMemoryLimits_v1(handle, now)
    gpu.note(f"FIGURE a limit of {_LIMIT} bytes is read back as {now.hardLimit}")
    environment = {**machine(), "CUDA_VISIBLE_DEVICES": gpu.facts.uuid}
    command = [*cgroups.into(group), sys.executable, "-c", _TAKES]
    done = subprocess.run(command, env=environment, text=True, capture_output=True)
    gpu.note(done.stdout)
    assert done.returncode == 0, done.stderr
    assert 0 <= _LIMIT - now.hardLimit < 2 * MIB
