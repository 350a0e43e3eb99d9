"""nvidia-ml-py, unmodified, under the library: memory queries show the limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract import names, region_file
from shim import region
from tests.shim.clients import CUDA, NVML
from tests.shim.conftest import GIB, Grants, Host

pytestmark = pytest.mark.sim


def _live_slots(directory: Path) -> int:
    """Processes that hold a slot of the region, by its own record."""
    geometry = region_file.Geometry(len(region.status(directory)))
    data = (directory / names.FILE_REGION).read_bytes()
    slots = range(geometry.slots_offset, geometry.file_bytes, geometry.slot_stride)
    return sum(region_file.SLOT.unpack(data, at)["state"] == region_file.SLOT_LIVE for at in slots)


def test_nvml_shows_the_limit_and_takes_no_slot(host: Host, grants: Grants) -> None:
    directory = grants.make(3 * GIB)
    program = (
        NVML
        + """
for version in (None, pynvml.nvmlMemory_v2):
    memory = pynvml.nvmlDeviceGetMemoryInfo(gpu(0), version=version)
    print(memory.total, memory.free, memory.used, getattr(memory, "reserved", 0))
    memory = pynvml.nvmlDeviceGetMemoryInfo(gpu(1), version=version)
    assert (memory.total, memory.free, memory.used) == (0, 0, 0), "not granted"
"""
    )
    assert host.python(program, directory).stdout == f"{3 * GIB} {3 * GIB} 0 0\n" * 2
    assert _live_slots(directory) == 0
    host.python(
        CUDA
        + NVML
        + f"""
import subprocess, sys
must(d.cuMemAlloc(GIB))
program = '''{program}'''
out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
assert out.stdout == f"{{3 * GIB}} {{2 * GIB}} {{GIB}} 0" + chr(10) + (
    f"{{3 * GIB}} {{2 * GIB}} {{GIB}} 0" + chr(10)), out.stdout
memory = pynvml.nvmlDeviceGetMemoryInfo(gpu(0))
assert (memory.total, memory.free, memory.used) == (3 * GIB, 2 * GIB, GIB)
""",
        directory,
    )


def test_nvml_checks_versions_and_handles_itself(host: Host, grants: Grants) -> None:
    program = (
        NVML
        + """
import ctypes
library = ctypes.CDLL("libnvidia-ml.so.1")
memory = (ctypes.c_uint64 * 8)()
memory[0] = 77
print(library.nvmlDeviceGetMemoryInfo_v2(gpu(0), memory),
      library.nvmlDeviceGetMemoryInfo(None, memory),
      library.nvmlDeviceGetMemoryInfo(gpu(0), None),
      library.nvmlDeviceGetMemoryInfo_v2(gpu(0), None))
"""
    )
    assert (
        host.python(program, grants.make(GIB)).stdout == host.python(program, preload=False).stdout
    )
