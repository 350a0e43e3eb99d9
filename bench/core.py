"""Shares of a GPU's time in real time, on the simulated GPU, and what the library adds to a launch.

Each container is a `python -m shim run` of cuda-load (simgpu/src/load.c), which counts the work
that the GPU has done for it. Its share is that work, in percent of what the same program gets
alone and without a limit. The first seconds, in which programs and arbiter start, are left out.
Costs of a launch are measured with drivers that answer at once. The machine must be quiet: the
simulated GPU, the programs and the arbiter share its cores.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Final

from bench import Result
from bench.native import BUILD, built, granted, output
from contract import lease_file, names

_ROOT: Final = Path(__file__).resolve().parent.parent
_SKIPPED_S: Final = 2
_KERNELS_US: Final = (5, 50, 500, 5_000, 50_000)
_CAPS: Final = range(10, 100, 10)
_MODES: Final = ("launch", "graph", "cooperative", "ex", "wait", "copy")
_PAIRS: Final = ((10, 90), (30, 70), (50, 50))
_AN_HOUR_NS: Final = 3_600_000_000_000
_COPY_GIB_PER_S: Final = 20.0
_COPY_US: Final = 1e6 / 1024 / _COPY_GIB_PER_S
_LIBRARY: Final = BUILD / "lib" / "libvgpu.so"


@dataclass(frozen=True)
class Load:
    """One container: its share, and what each of its processes does."""

    percent: int
    kernel_us: float
    mode: str = "launch"
    streams: int = 1
    processes: int = 1
    forced: bool = False

    @property
    def arguments(self) -> Sequence[str]:
        kernel_us = _COPY_US if self.mode == "copy" else self.kernel_us
        return (str(kernel_us), self.mode, str(self.streams))


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

    def run(self, loads: Sequence[Load], seconds: int, *, limited: bool = True) -> Sequence[Got]:
        """Run them at the same time for `seconds`, after the first ones."""
        started = [self._start(load, seconds + _SKIPPED_S, limited) for load in loads]
        return [_read(process, seconds) for process in started]

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
    for second, percent in re.findall(r"^after ([\d.]+) s: .* ([\d.]+) %", out, re.MULTILINE):
        number = round(float(second))
        each[number] = each.get(number, 0) + float(percent)
    kept = [each[number] for number in sorted(each) if number > _SKIPPED_S][:seconds]
    calls = re.search(r"^calls: (.*)$", out, re.MULTILINE)
    return Got(kept, calls[1] if calls else "")


@contextmanager
def _host(load: Path) -> Iterator[Host]:
    with tempfile.TemporaryDirectory(prefix="gpuslice-bench-") as name:
        host = Host(Path(name), load)
        try:
            yield host
        finally:
            host.close()


@dataclass
class _Table:
    figures: dict[str, float]
    rows: list[tuple[str, ...]]
    errors: list[float]
    seconds: list[float]


def _caps(host: Host, table: _Table, cases: Sequence[tuple[str, Load]], seconds: int) -> None:
    """Containers alone, with a forced share."""
    for name, load in cases:
        alone = host.run([load], 3, limited=False)[0].share
        got = host.run([load], seconds)[0]
        share = got.share / alone * 100
        table.errors.append(abs(share - load.percent))
        table.seconds += [abs(second / alone * 100 - load.percent) for second in got.seconds]
        table.rows.append((name, str(load.percent), f"{share:.2f}", got.calls))


def _together(host: Host, table: _Table, name: str, loads: Sequence[Load], seconds: int) -> float:
    """Containers at the same time; returns the largest error. Their loads saturate the GPU."""
    got = host.run(loads, seconds)
    shares = [each.share for each in got]
    wanted = " ".join(str(load.percent) for load in loads)
    found = " ".join(f"{share:.2f}" for share in shares)
    loss = 100 - sum(shares)
    table.figures["loss_percent"] = max(table.figures.get("loss_percent", 0), round(loss, 2))
    table.rows.append((name, wanted, found, f"loss {loss:.2f}"))
    return max(abs(share - load.percent) for share, load in zip(shares, loads, strict=True))


def _pairs() -> Iterator[tuple[str, Load, Load]]:
    small, big = Load(0, 20), Load(0, 50_000)
    yield "small kernels", small, small
    yield "big kernels", big, big
    yield "small and big kernels", small, big
    yield "graphs and small kernels", Load(0, 20, "graph"), small
    yield "4 processes and 1", Load(0, 100, processes=4), small
    yield "copies and small kernels", Load(0, _COPY_US, "copy"), small


def _with(load: Load, percent: int) -> Load:
    return Load(percent, load.kernel_us, load.mode, load.streams, load.processes)


def _shares(table: _Table, quick: bool, load: Path) -> None:
    seconds = 3 if quick else 10
    kernels = (50, 5_000) if quick else _KERNELS_US
    caps = (30, 70) if quick else _CAPS
    singles = [
        (f"forced, kernels of {us} us", Load(cap, us, forced=True))
        for us in kernels
        for cap in caps
    ]
    others = [
        *[(f"forced, by {mode}", Load(30, 200, mode, forced=True)) for mode in _MODES[1:]],
        ("forced, 8 streams", Load(30, 50, streams=8, forced=True)),
        ("forced, 8 processes", Load(30, 200, processes=8, forced=True)),
        ("forced, 8 processes", Load(70, 200, processes=8, forced=True)),
    ]
    with _host(load) as host:
        _caps(host, table, [*singles, *([] if quick else others)], seconds)
        errors = []
        for name, one, other in _pairs():
            for a, b in _PAIRS[1:2] if quick else _PAIRS:
                both = [_with(one, a), _with(other, b)]
                errors.append(_together(host, table, name, both, seconds))
        three = [Load(share, 50) for share in (20, 30, 50)]
        errors.append(_together(host, table, "three containers", three, seconds))
        plain = host.run([Load(100, 50)], seconds, limited=False)[0].share
        free = host.run([Load(100, 50)], seconds)[0].share
    table.figures["one_error_mean_points"] = round(mean(table.errors), 2)
    ordered = sorted(table.seconds)
    table.figures["one_second_error_p95_points"] = round(ordered[int(len(ordered) * 0.95)], 2)
    table.figures["several_error_most_points"] = round(max(errors), 2)
    table.figures["without_cap_of_plain"] = round(free / plain, 4)


def _launch_ns(program: Path, environment: Mapping[str, str], quick: bool) -> float:
    command = [program, "30" if quick else "100", "20000", "1000"]
    best = min(
        float(line.split()[1])
        for _ in range(3 if quick else 7)
        for line in output(command, environment).splitlines()
        if line.startswith("launch ")
    )
    return best


def _open_lease(directory: Path) -> None:
    """Checked launches in an open window, as for a container whose turn it is."""
    now_ns = time.monotonic_ns()
    lease = lease_file.Lease(now_ns + _AN_HOUR_NS, now_ns, now_ns + _AN_HOUR_NS)
    with (directory / names.FILE_LEASE).open("r+b", buffering=0) as file:
        for write in (lease_file.gate(True), *lease_file.update(0, 1, lease)):
            os.pwrite(file.fileno(), write.data, write.offset)


def _costs(table: _Table, quick: bool, program: Path) -> None:
    preload = {"LD_PRELOAD": str(_LIBRARY)}
    with granted() as environment:
        bare = _launch_ns(program, environment, quick)
        free = _launch_ns(program, {**environment, **preload}, quick)
        _open_lease(Path(environment[names.ENV_DIR]))
        capped = _launch_ns(program, {**environment, **preload}, quick)
    table.figures["launch_without_cap_added_ns"] = round(free - bare, 1)
    table.figures["launch_capped_added_ns"] = round(capped - bare, 1)
    for name, ns in (("bare", bare), ("no cap", free), ("in an open window", capped)):
        table.rows.append((f"a launch, {name}", "", f"{ns:.1f} ns", ""))


def run(quick: bool) -> Result:
    load, calls = built("cuda-load", "bench-calls")
    table = _Table({}, [], [], [])
    _costs(table, quick, calls)
    _shares(table, quick, load)
    at_most = {
        "launch_without_cap_added_ns": 5.0,
        "launch_capped_added_ns": 50.0,
        "one_error_mean_points": 1.0,
        "one_second_error_p95_points": 4.0,
        "several_error_most_points": 2.0,
        "loss_percent": 2.0,
    }
    header = ("containers", "requested", "got", "")
    return Result(table.figures, at_most, header, table.rows, {"without_cap_of_plain": 0.995})
