"""PyTorch, CuPy and vLLM under a limit: alone, two tenants of one GPU, and two that start together.

Every program sees its limit as the GPU's memory, gets all of it and then its usual error, and
computes correct results. NVML's figures for the processes, read from outside, are the reference. A
tenant's charge is the library's count plus the overhead. As in `python -m shim run`, the overhead
is the least excess of NVML's figure over the count, in three samples a second apart.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpuslice.contract.overhead import CODE_BYTES, PERIOD_S, WINDOW
from shim import measurement, region
from tests.gpu import facts
from tests.gpu.account import BLOCK
from tests.gpu.conftest import GpuHost, machine, make_grant
from tests.gpu.frameworks import FRAMEWORKS, Framework
from tests.support import MIB
from tests.talking import Talk
from traces.watch import Watch

pytestmark = [pytest.mark.sim, pytest.mark.timeout(900)]
Record = Callable[[str, object], None]


@pytest.fixture(params=FRAMEWORKS, ids=lambda framework: framework.name)
def framework(request: pytest.FixtureRequest, this_gpu: facts.Facts) -> Framework:
    wanted: Framework = request.param
    if wanted.version() is None:
        pytest.skip(wanted.missing)
    if this_gpu.free_bytes < 2 * wanted.limit_bytes:
        pytest.skip(f"needs {2 * wanted.limit_bytes} bytes free, has {this_gpu.free_bytes}")
    return wanted


class Tenant(Talk):
    """A framework's program under its own limit. An empty line on stdin starts its next phase."""

    def __init__(self, process: subprocess.Popen[str], directory: Path, limit_bytes: int) -> None:
        super().__init__(process)
        self._directory, self._limit_bytes = directory, limit_bytes

    def reach(self, phase: str) -> Mapping[str, Any]:
        """Wait until the program has reached the phase, and return its report."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith('{"phase"'):
                said: Mapping[str, Any] = json.loads(line)
                assert said["phase"] == phase
                return said
        status, log = self._process.wait(), (self._directory / "stderr").read_text()
        raise AssertionError(f"ended before {phase}: status {status}: {log[-2000:]}")

    def assert_filled(self) -> None:
        said = self.reach("filled")
        assert said["total_bytes"] == self._limit_bytes
        assert self._limit_bytes // 4 < said["filled_bytes"] <= self._limit_bytes

    def finish(self) -> None:
        self.reach("done")
        assert self._process.wait() == 0

    def assert_charged(self, watch: Watch, record: Record, about: str) -> None:
        """Check that the charge is NVML's figure plus at most CODE_BYTES, and within the limit."""
        own = psutil.Process(self.pid)
        (status,) = region.status(self._directory)
        figures = {
            "seen": watch.sample().of([own.pid, *(c.pid for c in own.children(recursive=True))]),
            "counted": status.use.used_bytes,
            "overhead": status.gpu.overhead_bytes,
            "limit": status.gpu.limit_bytes,
        }
        said = ", ".join(f"{name} {size / MIB:.0f} MiB" for name, size in figures.items())
        record("figure", f"{about}: {said}")
        charged = figures["counted"] + figures["overhead"]
        nearly = max(2 * BLOCK, figures["seen"] // 50)
        assert -nearly <= charged - figures["seen"] <= nearly + CODE_BYTES, said
        assert charged <= figures["limit"], said


@contextmanager
def tenant(framework: Framework, host: GpuHost, gpu: facts.Facts, place: Path) -> Iterator[Tenant]:
    """Start the program for the duration of the block."""
    make_grant(place, gpu, framework.limit_bytes, CODE_BYTES)
    with (
        measurement.measuring(place),
        (place / "stderr").open("wb") as log,
        subprocess.Popen(
            [framework.python, "-c", framework.code],
            env={**host.environment(place), **dict(framework.environment)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            yield Tenant(process, place, framework.limit_bytes)
        finally:
            process.kill()


@pytest.mark.parametrize("how", ["alone", "one after the other", "together"])
def test_a_framework_gets_its_limit_and_no_more(
    framework: Framework,
    this_gpu: facts.Facts,
    build_dir: Path,
    tmp_path: Path,
    record_property: Record,
    how: str,
) -> None:
    """how: if `together`, two programs begin each phase at the same time."""
    host = GpuHost(build_dir / "lib" / "libvgpu.so", uuid=this_gpu.uuid)
    with Watch(this_gpu.uuid, machine()) as watch, ExitStack() as stack:
        tenants = [
            stack.enter_context(tenant(framework, host, this_gpu, tmp_path / f"tenant{number}"))
            for number in range(1 if how == "alone" else 2)
        ]
        for it in tenants:
            it.reach("started")
        for group in [tenants] if how == "together" else [[it] for it in tenants]:
            for it in group:
                it.send("")
            for it in group:
                it.assert_filled()
        time.sleep((WINDOW + 1) * PERIOD_S)
        for number, it in enumerate(tenants):
            it.assert_charged(watch, record_property, f"tenant {number}")
        for it in tenants:
            it.send("")
        for it in tenants:
            it.finish()
