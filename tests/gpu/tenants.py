"""A framework's program under a limit of its own, and its processes' use of the GPU.

NVML is the reference: its figures for the processes, from outside, are the truth. A tenant is
charged the library's count and the overhead, which is measured here as by `python -m shim run`: the
least of three samples, a second apart, of NVML's figure beyond the count.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from gpuslice.contract import grant_file, overhead
from shim import measurement, region
from tests.gpu.conftest import GpuHost
from tests.gpu.facts import Facts
from tests.gpu.frameworks import Framework
from tests.support import MIB
from traces.watch import Watch

MEASURED_AFTER_S: Final = (overhead.WINDOW + 1) * overhead.PERIOD_S
_PATH_OF_LOG: Final = "stderr"


@dataclass(frozen=True)
class Charge:
    """A tenant's memory, in bytes, at one moment without allocations."""

    seen: int
    """By NVML, for all its processes."""
    counted: int
    """By the library."""
    overhead: int
    limit: int

    @property
    def charged(self) -> int:
        return self.counted + self.overhead

    def __str__(self) -> str:
        parts = ("seen", "counted", "overhead", "limit")
        return ", ".join(f"{part} {getattr(self, part) / MIB:.0f} MiB" for part in parts)


class Tenant:
    def __init__(self, process: subprocess.Popen[str], directory: Path) -> None:
        self._process = process
        self._directory = directory

    def answer(self, phase: str) -> Mapping[str, object]:
        """The program's report when it has reached that phase."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith('{"phase"'):
                said: Mapping[str, object] = json.loads(line)
                assert said["phase"] == phase
                return said
        status, log = self._process.wait(), (self._directory / _PATH_OF_LOG).read_text()
        raise AssertionError(f"ended before {phase}: status {status}: {log[-2000:]}")

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> None:
        self.answer("done")
        assert self._process.wait() == 0

    def charge(self, watch: Watch) -> Charge:
        """Return the charge once nothing has been allocated for MEASURED_AFTER_S."""
        (status,) = region.status(self._directory)
        gpu = status.gpu
        seen = watch.sample().of(self._pids())
        return Charge(seen, status.use.used_bytes, gpu.overhead_bytes, gpu.limit_bytes)

    def _pids(self) -> list[int]:
        own = psutil.Process(self._process.pid)
        return [own.pid, *(child.pid for child in own.children(recursive=True))]


@contextmanager
def tenant(framework: Framework, host: GpuHost, facts: Facts, directory: Path) -> Iterator[Tenant]:
    """The program, started; ended in any case."""
    directory.mkdir()
    gpu = grant_file.Gpu(
        facts.uuid,
        framework.limit_bytes,
        100,
        facts.minor,
        context_bytes=facts.context_bytes,
        code_bytes=overhead.CODE_BYTES,
    )
    region.create(directory, [gpu])
    with (
        measurement.measuring(directory),
        (directory / _PATH_OF_LOG).open("wb") as log,
        subprocess.Popen(
            [framework.python, "-c", framework.code],
            env={**host.environment(directory), **dict(framework.environment)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            yield Tenant(process, directory)
        finally:
            process.kill()
