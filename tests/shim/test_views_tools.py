"""Common tools' output under the library: every tool shows the same limit and use."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuslice.contract import grant_file
from shim import region
from tests.shim.clients import CUDA, NVML
from tests.shim.conftest import GIB, MIB, Grants, Host, change_grant
from tests.shim.drivers import DRIVERS, build_driver
from tests.shim.test_views_nvml import holding

pytestmark = pytest.mark.sim

_CUDA_VIEW = CUDA + "free, total = must(d.cuMemGetInfo()); print(total, total - free)"
_NVML_VIEW = f"""{NVML}
old = pynvml.nvmlDeviceGetMemoryInfo(gpu(0))
new = pynvml.nvmlDeviceGetMemoryInfo(gpu(0), version=pynvml.nvmlMemory_v2)
assert (old.total, old.free, old.used) == (new.total, new.free, new.used), new
assert old.used + old.free == old.total
other = pynvml.nvmlDeviceGetMemoryInfo(gpu(1))
assert (other.total, other.free, other.used) == (0, 0, 0), "not granted"
print(old.total, old.used)
"""
_NVITOP_VIEW = """
from nvitop import Device
gpu = Device(0)
print(gpu.memory_total(), gpu.memory_used())
print({pid: process.gpu_memory() for pid, process in gpu.processes().items()})
"""


def _gpustat(host: Host, directory: Path) -> Any:
    done = host.run([sys.executable, "-m", "gpustat", "--json"], directory)
    return json.loads(done.stdout)["gpus"][0]


def _numbers(text: str) -> tuple[int, int]:
    total, used = text.split()[:2]
    return int(total), int(used)


def test_row_29_every_view_agrees(host: Host, grants: Grants, build_dir: Path) -> None:
    """Both versions of NVML's function, nvidia-smi, gpustat, nvitop and CUDA show equal figures."""
    directory = grants.make(3 * GIB)
    smi = build_dir / "bin" / "nvidia-smi"
    query: list[str | Path] = [
        smi,
        "--query-gpu=memory.total,memory.used",
        "--format=csv,noheader,nounits",
    ]
    with holding(host, GIB, directory) as holder:
        total, used = _numbers(host.python(_NVML_VIEW, directory).stdout)
        assert (total, used >= GIB) == (3 * GIB, True)
        assert len(region.holders(directory)) == 1, "looking takes no slot"
        assert used % MIB == 0, "or the tools below would round"
        gpu = _gpustat(host, directory)
        assert (gpu["memory.total"], gpu["memory.used"]) == (total // MIB, used // MIB)
        (row,) = gpu["processes"]
        assert (row["pid"], row["gpu_memory_usage"]) == (holder.pid, used // MIB)
        said = host.python(_NVITOP_VIEW, directory).stdout
        assert said == f"{total} {used}\n{{{holder.pid}: {used}}}\n"
        for command in ([sys.executable, "-m", "nvitop", "-1"], [smi]):
            table = host.run(command, directory).stdout
            assert re.search(rf"{used // MIB}MiB /\s+{total // MIB}MiB", table), table
            assert re.search(rf"\s0\s.*\s{holder.pid}\s+C\s.*{used // MIB}MiB", table), table
        said = host.run(query, directory).stdout.splitlines()[0]
        assert said == f"{total // MIB}, {used // MIB}"
        both = host.python(f"{_CUDA_VIEW}\n{_NVML_VIEW}", directory).stdout
    by_cuda, by_nvml = map(_numbers, both.splitlines())
    assert by_cuda == by_nvml and by_cuda[1] >= used


def test_row_28_no_argument_crashes_and_nothing_underflows(
    host: Host, grants: Grants, build_dir: Path
) -> None:
    """NULL arguments reach the driver. A use beyond a lowered limit is shown as the whole limit."""
    directory = grants.make(2 * GIB)
    without = f"""{CUDA}
import ctypes
library = ctypes.CDLL("libcuda.so.1")
place = ctypes.byref(ctypes.c_size_t(7))
for places in ((None, None), (place, None), (None, place)):
    assert library.cuMemGetInfo_v2(*places) in (0, 1)
assert library.cuMemGetInfo(None, None) in (0, 1)
"""
    host.python(without, directory)
    with holding(host, GIB, directory):
        change_grant(directory, limit_bytes=512 * MIB)
        for view in (_NVML_VIEW, _NVITOP_VIEW):
            assert _numbers(host.python(view, directory).stdout) == (512 * MIB, 512 * MIB)
        gpu = _gpustat(host, directory)
        assert (gpu["memory.total"], gpu["memory.used"]) == (512, 512)
        table = host.run([build_dir / "bin" / "nvidia-smi"], directory).stdout
        assert "512MiB /    512MiB" in table
        change_grant(directory, limit_bytes=2 * GIB)
        total, used = _numbers(host.python(_NVML_VIEW, directory).stdout)
        assert (total, GIB <= used < 2 * GIB) == (2 * GIB, True)


def test_row_28_a_null_argument_shows_no_more_than_the_limit(library: Path, tmp_path: Path) -> None:
    """This test's driver accepts NULL as the address of the free or the total memory."""
    host = Host(library, build_driver(tmp_path, DRIVERS / "musl_driver.c").parent)
    region.create(tmp_path, [grant_file.Gpu(f"GPU-{'aa' * 16}", GIB, 100, 0)])
    host.python(
        f"""
import ctypes
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
for given in ((1, 1), (1, 0), (0, 1), (0, 0)):
    sizes = [ctypes.c_size_t(7), ctypes.c_size_t(7)]
    arguments = (ctypes.byref(one) if use else None for one, use in zip(sizes, given))
    assert cuda.cuMemGetInfo_v2(*arguments) == 0
    expected = [{GIB} if use else 7 for use in given]
    assert [one.value for one in sizes] == expected, (given, sizes)
""",
        tmp_path,
    )


def test_free_is_never_more_than_the_gpu_has(host: Host, grants: Grants) -> None:
    """GPU 0 has 4 GiB. A neighbour holds 3 GiB, so only 1 GiB is free below the limit of 3 GiB."""
    program = f"""{CUDA}{NVML}
free, total = must(d.cuMemGetInfo())
assert total == 3 * GIB and 0 < free <= GIB, free
memory = pynvml.nvmlDeviceGetMemoryInfo(gpu(0))
assert (memory.total, memory.free) == (total, free), memory
"""
    with holding(host, 3 * GIB, None):
        host.python(program, grants.make(3 * GIB))


def test_row_04_without_a_limit_everything_is_the_drivers(host: Host) -> None:
    program = f"""{CUDA}{NVML}
must(d.cuMemAlloc(GIB))
print(must(d.cuMemGetInfo()), [must(d.cuDeviceTotalMem(i)) for i in range(2)])
for index in range(2):
    for version in (None, pynvml.nvmlMemory_v2):
        memory = pynvml.nvmlDeviceGetMemoryInfo(gpu(index), version=version)
        print(memory.total, memory.free, memory.used)
    bar1 = pynvml.nvmlDeviceGetBAR1MemoryInfo(gpu(index))
    print(bar1.bar1Total, bar1.bar1Used)
    rows = pynvml.nvmlDeviceGetComputeRunningProcesses(gpu(index))
    print([row.usedGpuMemory for row in rows])
"""
    assert host.python(program).stdout == host.python(program, preload=False).stdout
