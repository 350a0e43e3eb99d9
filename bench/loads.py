"""Runs containers of cuda-load on a simulated host by `python -m shim run`, and counts their work.

A container's share is the work that the GPU did for it, as a percentage of what the same program
gets without a limit and without other containers. The first seconds are left out. The added wait of
a launch is the time since the launch before it, less the same time without a limit. Of a
container's processes, the one with the longest waits counts.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from typing import Final

import psutil

from gpuslice.contract import lease_file
from simgpu import load_output
from traces.host import BUILD, ROOT

_SKIPPED_S: Final = 2
_CYCLE_MS: Final = lease_file.CYCLE_NS / 1e6
_ENDS_S: Final = 60
_GRAPH_KERNELS: Final = 20
_COPY_GIB_PER_S: Final = 5.0
"""The simulated speed of copies. It is so low that the processor can really copy as fast."""
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
    forced: bool = False

    @property
    def arguments(self) -> Sequence[str]:
        return (str(self._kernel_us), "--mode", self.mode, *self.options.split())

    @property
    def _kernel_us(self) -> float:
        return COPY_US if self.mode == "copy" else self.kernel_us

    def ideal_added_us(self, quantile: float, alone: float) -> float:
        """Return a launch's added wait if each cycle had one window of exactly the share. alone:
        the percentage of the GPU's time that the program uses without a limit.

        If a window has several launches, only the first of them waits for the window. A launch that
        takes longer than one window waits for as many windows as it takes.
        """
        window_us = self.percent * 10 * _CYCLE_MS
        closed_us = 1000 * _CYCLE_MS - window_us
        launch_us = self._kernel_us * (_GRAPH_KERNELS if self.mode == "graph" else 1)
        launches = window_us * alone / 100 / (launch_us * self.processes)
        if launches < 1:
            return closed_us / launches
        return closed_us if 1 / launches > 1 - quantile else 0


@dataclass(frozen=True)
class MeasuredWork:
    """The measured work of a container's processes. seconds: the work in each second, in percent of
    the second. share: the same for the whole time. best_us, p50_us, p99_us: the time from one
    launch to the next. best_us is the least mean of some launches in a row. step_p50_us and
    step_p99_us: the times of steps; 0 without steps. Quantiles are those of the process with the
    longest times."""

    seconds: Sequence[float]
    share: float
    best_us: float
    p50_us: float
    p99_us: float
    step_p50_us: float
    step_p99_us: float


@dataclass(frozen=True)
class Started:
    """A running container. process: `shim run` or a shell. files: outputs of its processes."""

    process: subprocess.Popen[bytes]
    files: Sequence[Path]

    def end(self, seconds: int) -> MeasuredWork:
        """Wait until all programs have ended, even if only `shim run` was killed."""
        if self.process.wait() not in (0, -signal.SIGKILL):
            raise RuntimeError(f"a container of cuda-load ended with {self.process.returncode}")
        deadline = time.monotonic() + _ENDS_S
        while not all(load_output.between_launches(file.read_text()) for file in self.files):
            if time.monotonic() > deadline:
                raise RuntimeError(f"cuda-load has not ended after {_ENDS_S} s")
            time.sleep(0.1)
        return _together([file.read_text() for file in self.files], seconds)


def _together(outputs: Sequence[str], seconds: int) -> MeasuredWork:
    """Add up the work of a container's processes. A line of output has the work since the line
    before, which counts for the second in which the line was written."""
    parts = [0.0] * seconds
    share = 0.0
    for output in outputs:
        lines = [(0.0, 0.0), *load_output.seconds(output)]
        kept = [
            (int(to_s), to_s - from_s, percent)
            for (from_s, _), (to_s, percent) in pairwise(lines)
            if _SKIPPED_S < int(to_s) <= _SKIPPED_S + seconds
        ]
        for number, _, percent in kept:
            parts[number - _SKIPPED_S - 1] += percent
        share += sum(took * each for _, took, each in kept) / sum(took for _, took, _ in kept)
    times = [each for output in outputs for each in load_output.between_launches(output)]
    best, p50, p99 = zip(*times, strict=True)
    steps = [each for output in outputs for each in load_output.steps(output)] or [(0, 0.0, 0.0)]
    _, step_p50, step_p99 = zip(*steps, strict=True)
    return MeasuredWork(parts, share, min(best), max(p50), max(p99), max(step_p50), max(step_p99))


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

    def alone(self, load: Load, seconds: int = 3, again: bool = False) -> MeasuredWork:
        """Return the load's work alone and without a limit. again: do not use the last result."""
        key = (*load.arguments, load.processes)
        if again or key not in self._alone:
            self._alone[key] = self.run([load], seconds, limited=False)[0]
        return self._alone[key]

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
        environment = {
            **os.environ,
            "SIMGPU_DIR": str(self._home),
            "LD_LIBRARY_PATH": str(BUILD / "lib" / "simgpu"),
            "TMPDIR": str(self._runs),
        }
        if limited:
            policy = "capped" if load.forced else "fair"
            options = ["--memory", "8GiB", "--context-bytes", "300MiB", "--gpu", "0"]
            options += ["--core", str(load.percent), "--core-policy", policy]
            shell = [sys.executable, "-m", "shim", "run", *options, "--", *shell]
        return Started(subprocess.Popen(shell, cwd=ROOT, env=environment), files)


@contextmanager
def host(load: Path) -> Iterator[Host]:
    with (
        tempfile.TemporaryDirectory(prefix="gpuslice-bench-") as name,
        closing(Host(Path(name), load)) as host,
    ):
        yield host
