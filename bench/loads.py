"""Containers of cuda-load on a simulated host: started by `python -m shim run`, their work counted.

Each container's share is the work that the GPU has done for it, in percent of what the same
program gets alone and without a limit. The first seconds, in which programs and arbiter start, are
left out.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Final

import psutil

from bench.native import BUILD
from contract import lease_file
from simgpu import load_output

_ROOT: Final = Path(__file__).resolve().parent.parent
_SKIPPED_S: Final = 2
_CYCLE_MS: Final = lease_file.CYCLE_NS / 1e6
_COPY_GIB_PER_S: Final = 20.0
COPY_US: Final = 1e6 / 1024 / _COPY_GIB_PER_S
"""What cuda-load's copy of a MiB takes on this host."""


@dataclass(frozen=True)
class Load:
    """One container: its share, and what each of its processes does."""

    percent: int
    kernel_us: float
    mode: str = "launch"
    streams: int = 1
    processes: int = 1
    blocks: int = 1
    forced: bool = False

    @property
    def arguments(self) -> Sequence[str]:
        kernel_us = COPY_US if self.mode == "copy" else self.kernel_us
        return (str(kernel_us), self.mode, str(self.streams), str(self.blocks))

    @property
    def ideal_p99_us(self) -> float:
        """A launch's wait if each cycle had one window of exactly its share: once per window."""
        window_us = self.percent * 10 * _CYCLE_MS
        launches = window_us * self.processes / self.kernel_us
        closed_us = 1000 * _CYCLE_MS - window_us
        return 0 if launches > 100 else closed_us * max(1, 1 / launches)


@dataclass(frozen=True)
class Got:
    """The work of each second, in percent of it, over all processes; the times of the calls."""

    seconds: Sequence[float]
    calls: str

    @property
    def share(self) -> float:
        return mean(self.seconds)


class Host:
    """A simulated host with one GPU, for the time of the benchmark."""

    def __init__(self, directory: Path, load: Path) -> None:
        self._load = load
        self._home = directory / "sim"
        self._runs = directory / "runs"
        self._runs.mkdir()
        self._alone: dict[object, float] = {}
        default = (_ROOT / "simgpu" / "default.toml").read_text()
        config = directory / "host.toml"
        config.write_text(
            re.sub(r"copy_gib_per_s = \S+", f"copy_gib_per_s = {_COPY_GIB_PER_S}", default)
        )
        self._simgpu("up", "--config", str(config))

    def close(self) -> None:
        self._simgpu("down")

    def _simgpu(self, verb: str, *options: str) -> None:
        command = [sys.executable, "-m", "simgpu", verb, "--dir", str(self._home), *options]
        subprocess.run(command, cwd=_ROOT, check=True, stdout=subprocess.DEVNULL)

    def run(
        self,
        loads: Sequence[Load],
        seconds: int,
        *,
        limited: bool = True,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Sequence[Got]:
        """Run them at the same time for `seconds`, after the first ones; then call `meanwhile`."""
        started = [self._start(load, seconds + _SKIPPED_S, limited) for load in loads]
        time.sleep(_SKIPPED_S)
        meanwhile()
        return [_read(process, seconds) for process in started]

    def alone(self, load: Load) -> float:
        """The work of such a program alone and without a limit, in percent of the time."""
        key = (*load.arguments, load.processes)
        if key not in self._alone:
            self._alone[key] = self.run([load], 3, limited=False)[0].share
        return self._alone[key]

    def arbiters(self) -> Sequence[psutil.Process]:
        """One of each run; the first of them leases the GPU, the others wait for its end."""
        found = [
            process
            for process in psutil.process_iter(["cmdline"])
            if {"arbiter", str(self._runs)} <= set(process.info["cmdline"] or ())
        ]
        if not found:
            raise RuntimeError(f"no arbiter of {self._runs} runs")
        return sorted(found, key=lambda process: process.create_time())

    def _start(self, load: Load, seconds: int, limited: bool) -> subprocess.Popen[str]:
        command = f"{self._load} {seconds + 0.5} {' '.join(load.arguments)}"
        shell = ["/bin/sh", "-c", " & ".join([command] * load.processes) + " & wait"]
        environment = {
            **os.environ,
            "SIMGPU_DIR": str(self._home),
            "LD_LIBRARY_PATH": str(BUILD / "lib" / "simgpu"),
            "TMPDIR": str(self._runs),
        }
        if limited:
            policy = "force" if load.forced else "default"
            options = ["--memory", "8GiB", "--context-bytes", "300MiB", "--gpu", "0"]
            options += ["--core", str(load.percent), "--core-policy", policy]
            shell = [sys.executable, "-m", "shim", "run", *options, "--", *shell]
        return subprocess.Popen(
            shell, cwd=_ROOT, env=environment, stdout=subprocess.PIPE, text=True
        )


def _read(process: subprocess.Popen[str], seconds: int) -> Got:
    with process:
        out, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"cuda-load ended with {process.returncode}")
    each: dict[int, float] = {}
    for second, percent in load_output.seconds(out):
        number = round(second)
        each[number] = each.get(number, 0) + percent
    kept = [each[number] for number in sorted(each) if number > _SKIPPED_S][:seconds]
    calls = re.search(r"^calls: (.*)$", out, re.MULTILINE)
    return Got(kept, calls[1] if calls else "")


@contextmanager
def host(load: Path) -> Iterator[Host]:
    with tempfile.TemporaryDirectory(prefix="gpuslice-bench-") as name:
        host = Host(Path(name), load)
        try:
            yield host
        finally:
            host.close()
