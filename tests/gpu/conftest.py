"""A program on this machine's own GPU, under the library and a limit, without the simulation."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gpuslice.contract import grant_file, names
from shim import region
from tests.gpu import facts
from tests.shim.conftest import GIB, Host

VARIABLE = "GPUSLICE_GPU"
UNTIL = "GPUSLICE_GPU_UNTIL"
"""An instant of time.monotonic(). Tests that would begin later are skipped."""
_MOST_BYTES = 3 * GIB
_OURS = ("CUDA_DEVICE_", "GPUSLICE_", "LD_PRELOAD")


@dataclass(frozen=True)
class GpuHost(Host):
    """This machine as a host: programs find its own driver, and see the GPU `uuid`."""

    driver_dir: Path = Path()
    uuid: str = ""

    def environment(
        self, grant_dir: Path | None = None, *, preload: bool = True
    ) -> Mapping[str, str]:
        limited = dict(super().environment(grant_dir, preload=preload))
        del limited["LD_LIBRARY_PATH"]
        return {**machine(), **limited, "CUDA_VISIBLE_DEVICES": self.uuid}


@dataclass(frozen=True)
class Gpu:
    host: GpuHost
    facts: facts.Facts
    grant_dir: Path
    record: Callable[[str, object], None]

    @property
    def limit_bytes(self) -> int:
        return region.status(self.grant_dir)[0].gpu.limit_bytes

    def python(self, program: str) -> subprocess.CompletedProcess[str]:
        """Run the program under the limit. The table shows what the program prints as FIGURE."""
        done = self.host.python(program, self.grant_dir)
        self.note(done.stdout)
        return done

    def note(self, said: str) -> None:
        """Print the lines of FIGURE, and add them to the table."""
        for line in said.splitlines():
            if line.startswith("FIGURE "):
                sys.stdout.write(f"\n    {line.removeprefix('FIGURE ')}")
                self.record("figure", line.removeprefix("FIGURE "))


def make_grant(directory: Path, gpu: facts.Facts, limit_bytes: int, code_bytes: int = 0) -> None:
    directory.mkdir()
    share = grant_file.Gpu(gpu.uuid, limit_bytes, 100, gpu.minor, gpu.context_bytes)
    region.create(directory, [replace(share, code_bytes=code_bytes)])


def machine() -> Mapping[str, str]:
    """The environment, without variables that would change the library's limits."""
    return {
        name: text
        for name, text in os.environ.items()
        if name == names.ENV_BOOKINGS or not name.startswith(_OURS)
    }


@pytest.fixture(autouse=True)
def _budget() -> None:
    if time.monotonic() > float(os.environ.get(UNTIL, "inf")):
        pytest.skip("the time of make gpu is spent; a named part has no budget: ARGS=PART")


@pytest.fixture(scope="session")
def this_gpu() -> facts.Facts:
    number = os.environ.get(VARIABLE)
    if number is None:
        pytest.skip("needs a GPU of its own: make gpu, where there is one")
    try:
        found = facts.of(int(number), machine())
    except facts.GpuError as error:
        pytest.fail(str(error), pytrace=False)
    if found.free_bytes < _MOST_BYTES:
        pytest.skip(f"{found.uuid} has {found.free_bytes} bytes free; the rows take {_MOST_BYTES}")
    return found


@pytest.fixture
def gpu(
    this_gpu: facts.Facts,
    build_dir: Path,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> Gpu:
    """This machine's GPU, with a limit of 1 GiB plus the cost of a context."""
    make_grant(tmp_path / "grant", this_gpu, GIB + this_gpu.context_bytes)
    host = GpuHost(build_dir / "lib" / "libvgpu.so", uuid=this_gpu.uuid)
    return Gpu(host, this_gpu, tmp_path / "grant", record_property)
