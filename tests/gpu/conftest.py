"""A program on this machine's own GPU, with the library, a limit, and nothing simulated."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuslice.contract import grant_file, names
from shim import region
from tests import sanitizers
from tests.gpu import facts
from tests.shim.conftest import GIB, Host

VARIABLE = "GPUSLICE_GPU"
USABLE_BYTES = GIB
"""Memory that a program may take beyond its context."""
_MOST_BYTES = 3 * GIB
_OURS = ("CUDA_DEVICE_", "GPUSLICE_", "LD_PRELOAD")


@dataclass(frozen=True)
class GpuHost(Host):
    """This machine unchanged: its own driver, found as programs find it, and one of its GPUs."""

    uuid: str = ""

    def environment(
        self, grant_dir: Path | None = None, *, preload: bool = True
    ) -> Mapping[str, str]:
        preloaded = sanitizers.preload(*([self.library] if preload else []))
        return {
            **machine(),
            "CUDA_VISIBLE_DEVICES": self.uuid,
            **({"LD_PRELOAD": preloaded} if preloaded else {}),
            **sanitizers.environment(),
            **({names.ENV_DIR: str(grant_dir)} if grant_dir else {}),
        }


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
        """Run it under the limit; the table shows what it prints as FIGURE."""
        done = self.host.python(program, self.grant_dir)
        self.note(done.stdout)
        return done

    def note(self, said: str) -> None:
        for line in said.splitlines():
            if line.startswith("FIGURE "):
                self.record("figure", line.removeprefix("FIGURE "))


def machine() -> Mapping[str, str]:
    """The environment without variables that would change the library's limits."""
    return {name: text for name, text in os.environ.items() if not name.startswith(_OURS)}


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
    library = build_dir / "lib" / "libvgpu.so"
    limit = USABLE_BYTES + this_gpu.context_bytes
    of_it = grant_file.Gpu(
        this_gpu.uuid, limit, 100, this_gpu.minor, context_bytes=this_gpu.context_bytes
    )
    directory = tmp_path / "grant"
    directory.mkdir()
    region.create(directory, [of_it])
    host = GpuHost(library, Path(this_gpu.driver_dir), uuid=this_gpu.uuid)
    return Gpu(host, this_gpu, directory, record_property)
