"""Runs containers of cuda-load on a simulated host by `python -m shim run`, and counts their work.

A container's share is the work that the GPU did for it, as a percentage of what the same program
gets without a limit and without other containers. The first seconds are left out.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from typing import Final

import psutil

from bench.native import output
from gpuslice.contract import grant_file, names, region_file
from gpuslice.contract.grant_file import Policy
from simgpu import load_output
from traces.host import BUILD, ROOT

_SKIPPED_S: Final = 2
_ENDS_S: Final = 60
_COPY_GIB_PER_S: Final = 5.0
"""The simulated speed of copies. It is so low that the processor can really copy as fast."""
_KILLED: Final = 128 + signal.SIGKILL
_HAS_CLUSTERS: Final = "capability_major = 9"
COPY_US: Final = 1e6 / 1024 / _COPY_GIB_PER_S
"""The duration of cuda-load's copy of one MiB on this host."""


@dataclass(frozen=True)
class Load:
    """A container's load: its share in percent, and what each of its processes does."""

    percent: int
    kernel_us: float
    mode: str = "launch"
    options: str = ""
    """More options of cuda-load: see its --help."""
    processes: int = 1
    policy: Policy = Policy.FAIR

    @property
    def arguments(self) -> Sequence[str]:
        return (str(self._kernel_us), "--mode", self.mode, *self.options.split())

    @property
    def _kernel_us(self) -> float:
        return COPY_US if self.mode == "copy" else self.kernel_us


@dataclass(frozen=True)
class MeasuredWork:
    """The measured work of a container's processes. share: the work, in percent of the time.
    best_us: the least mean of the time from one launch to the next, of some launches in a row.
    step_p50_us: the median time of a step, of the process with the longest; 0 without steps."""

    share: float
    best_us: float
    step_p50_us: float


@dataclass(frozen=True)
class Started:
    """A running container. process: `shim run` or a shell. files: outputs of its processes."""

    process: subprocess.Popen[bytes]
    files: Sequence[Path]

    def end(self, seconds: int) -> MeasuredWork:
        """Wait until all programs have ended, even if only `shim run` was killed."""
        code = self.process.wait()
        if code == _KILLED:
            return MeasuredWork(0, 0, 0)
        if code not in (0, -signal.SIGKILL):
            raise RuntimeError(f"a container of cuda-load ended with {code}")
        deadline = time.monotonic() + _ENDS_S
        while not all(load_output.between_launches(file.read_text()) for file in self.files):
            if time.monotonic() > deadline:
                raise RuntimeError(f"cuda-load has not ended after {_ENDS_S} s")
            time.sleep(0.1)
        return _together([file.read_text() for file in self.files], seconds)


def _together(texts: Sequence[str], seconds: int) -> MeasuredWork:
    """Add up the work of a container's processes. A line of output has the work since the line
    before."""
    share = 0.0
    for text in texts:
        lines = [(0.0, 0.0), *load_output.seconds(text)]
        kept = [
            (to_s - from_s, percent)
            for (from_s, _), (to_s, percent) in pairwise(lines)
            if _SKIPPED_S < int(to_s) <= _SKIPPED_S + seconds
        ]
        share += sum(took * each for took, each in kept) / sum(took for took, _ in kept)
    best = [each[0] for text in texts for each in load_output.between_launches(text)]
    steps = [each[1] for text in texts for each in load_output.steps(text)]
    return MeasuredWork(share, min(best), max(steps, default=0))


class Host:
    """A simulated host with one GPU, which `close` removes."""

    def __init__(self, directory: Path, load: Path) -> None:
        self._load = load
        self._home = directory / "sim"
        self._runs = directory / "runs"
        self._runs.mkdir()
        self._outputs = (directory / f"output-{number}" for number in count())
        self._alone: dict[object, MeasuredWork] = {}
        self.started: Sequence[Started] = ()
        text = (ROOT / "simgpu" / "default.toml").read_text()
        text = re.sub(r"copy_gib_per_s = \S+", f"copy_gib_per_s = {_COPY_GIB_PER_S}", text)
        config = directory / "host.toml"
        config.write_text(text.replace("[[gpu]]", f"[[gpu]]\n{_HAS_CLUSTERS}"))
        self._simgpu("up", "--config", str(config))

    def close(self) -> None:
        self._simgpu("down")

    def _simgpu(self, verb: str, *options: str) -> None:
        command = [sys.executable, "-m", "simgpu", verb, "--dir", str(self._home), *options]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)

    def run(
        self,
        loads: Sequence[Load],
        seconds: int,
        *,
        limited: bool = True,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Sequence[MeasuredWork]:
        """Run the loads together. Call `meanwhile` after _SKIPPED_S, then measure `seconds`."""
        self.started = [self._start(load, seconds + _SKIPPED_S, limited) for load in loads]
        time.sleep(_SKIPPED_S)
        meanwhile()
        got = [each.end(seconds) for each in self.started]
        for left in self._runs.iterdir():  # directories of a killed `shim run`
            shutil.rmtree(left)
        return got

    def alone(self, load: Load, seconds: int = 3) -> MeasuredWork:
        """Return the load's work alone and without a limit."""
        key = (*load.arguments, load.processes)
        if key not in self._alone:
            self._alone[key] = self.run([load], seconds, limited=False)[0]
        return self._alone[key]

    def output(self, command: Sequence[str | Path], percent: int | None) -> str:
        """Run a program that prints measurements. percent: its share, or None without a limit."""
        limited = [] if percent is None else self._limited(percent, Policy.FAIR)
        return output([*limited, *command], self._environment)

    def arbiters(self) -> Sequence[psutil.Process]:
        """Return the arbiter of each `shim run`. Only the first of them leases the GPU."""
        found = [
            process
            for process in psutil.process_iter(["cmdline"])
            if {"arbiter", str(self._runs)} <= set(process.info["cmdline"] or ())
        ]
        if not found:
            raise RuntimeError(f"no arbiter of {self._runs} runs")
        return sorted(found, key=lambda process: process.create_time())

    def first(self) -> Sequence[psutil.Process]:
        """Return the programs of the first container and their shell."""
        arbiters = self.arbiters()
        found = psutil.Process(self.started[0].process.pid).children(recursive=True)
        return [process for process in found if process not in arbiters]

    def kill_first(self) -> None:
        for process in self.first():
            process.kill()

    def forge(self, seconds: float) -> None:
        """Write random numbers into what the region of the container with the least share shows."""
        directory = min(self._runs.glob(f"*/{names.FILE_GRANT}"), key=_percent).parent
        offset = region_file.Geometry(1).compute_offset(0)
        end_s = time.monotonic() + seconds
        with (directory / names.FILE_REGION).open("r+b", buffering=0) as file:
            while time.monotonic() < end_s:
                os.pwrite(file.fileno(), os.urandom(region_file.COMPUTE.size), offset)
                time.sleep(0.002)

    @contextmanager
    def arbiter(self) -> Iterator[None]:
        """Run one more arbiter, as a restarted node agent does."""
        command = [sys.executable, "-m", "shim", "arbiter", str(self._runs)]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE):
            yield

    def _start(self, load: Load, seconds: int, limited: bool) -> Started:
        output = next(self._outputs)
        output.mkdir()
        files = [output / str(number) for number in range(load.processes)]
        command = f"{self._load} {seconds + 0.5} {' '.join(load.arguments)}"
        shell = ["/bin/sh", "-c", " & ".join(f"{command} >{file}" for file in files) + " & wait"]
        if limited:
            shell = [*self._limited(load.percent, load.policy), *shell]
        return Started(subprocess.Popen(shell, cwd=ROOT, env=self._environment), files)

    @property
    def _environment(self) -> Mapping[str, str]:
        return {
            **os.environ,
            "SIMGPU_DIR": str(self._home),
            "LD_LIBRARY_PATH": str(BUILD / "lib" / "simgpu"),
            "TMPDIR": str(self._runs),
            "PYTHONPATH": str(ROOT),
            # Each container has its own, because one of a killed `shim run` may still be running.
            names.ENV_BOOKINGS: str(next(self._outputs)),
        }

    def _limited(self, percent: int, policy: Policy) -> Sequence[str]:
        options = ["--memory", "8GiB", "--context-bytes", "300MiB", "--gpu", "0"]
        options += ["--core", str(percent), "--compute", policy]
        return [sys.executable, "-m", "shim", "run", *options, "--"]


def _percent(grant: Path) -> int:
    found = grant_file.decode(grant.read_bytes())
    return found.gpus[0].core_percent if found else 100


@contextmanager
def host(load: Path) -> Iterator[Host]:
    with (
        tempfile.TemporaryDirectory(prefix="gpuslice-bench-") as name,
        closing(Host(Path(name), load)) as host,
    ):
        yield host
