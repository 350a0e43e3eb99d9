"""Helpers that run programs with HAMi-core's variables, and return GPUs' memory or the refusal."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpuslice.contract import names
from tests.shim.clients import NVML
from tests.shim.conftest import Host

MEMORY, CORE, CACHE = names.ENV_MEMORY_LIMIT, names.ENV_CORE_LIMIT, names.ENV_SHARED_CACHE
LISTED = names.ENV_VISIBLE_DEVICES

DRIVER = """
import ctypes
driver, size = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t()
"""
INIT = DRIVER + "print(driver.cuInit(0))\n"
# LOOK prints cuInit's result and each GPU's total memory. LOOK_NVML prints the totals of NVML.
LOOK = f"""{INIT}
def total(ordinal):
    assert driver.cuDeviceTotalMem_v2(ctypes.byref(size), ordinal) == 0
    return size.value
count = ctypes.c_int()
assert driver.cuDeviceGetCount(ctypes.byref(count)) == 0
print(*map(total, range(count.value)))
"""
LOOK_NVML = f"""{NVML}
print(*(pynvml.nvmlDeviceGetMemoryInfo(gpu(i)).total for i in range(pynvml.nvmlDeviceGetCount())))
"""


class Container:
    """Runs programs that have these variables and share a cache file."""

    def __init__(self, host: Host, directory: Path, grant: Path | None = None) -> None:
        self.host, self.cache, self.grant = host, directory / "cache", grant

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the host's environment with these variables, and 0 as a context's cost."""
        mine = {CACHE: str(self.cache), names.ENV_CONTEXT: "0"}
        return {**self.host.environment(self.grant), **mine, **variables}

    def run(self, program: str, variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        return self.host.python(program, self.grant, variables=self.environment(variables))

    def totals(self, variables: Mapping[str, str], program: str = LOOK) -> list[int]:
        done = self.run(program, variables)
        assert done.stderr == "", done
        lines = done.stdout.splitlines()
        assert lines[:-1] in ([], ["0"]), done
        return [int(number) for number in lines[-1].split()]

    def refusal(self, variables: Mapping[str, str]) -> str:
        """Return the error line. Check that cuInit is refused and that the program continues."""
        done = self.run(INIT + 'print("alive")', variables)
        assert done.stdout == "800\nalive\n", done
        assert done.stderr.count("\n") == 1
        return done.stderr


@pytest.fixture
def container(host: Host, tmp_path: Path) -> Container:
    """A container whose region has no grant."""
    return Container(host, tmp_path)
