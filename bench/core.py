"""Measures the shares of the simulated GPU's time, and what the library adds to a launch.

Shares are measured in real time. The cost of a launch is measured with a driver that returns at
once. The machine must be idle: the simulated GPU, the programs and the arbiter share its cores.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from statistics import mean
from typing import Final

import psutil

from bench import Result
from bench.loads import COPY_US, Host, Load, host
from bench.native import PRELOAD, built, output
from gpuslice.contract import lease_file, names
from traces.host import granted

_AN_HOUR_NS: Final = 3_600_000_000_000
_CHECKED: Final = "launch_checked"
_WAITED: Final = "each launch waited for"

_MODES: Final = {
    "graphs of 20 kernels": Load(0, 200, "graph"),
    "cooperative launches": Load(0, 200, "cooperative"),
    "launches with three attributes, in clusters": Load(0, 200, "cluster", "--blocks 2"),
    _WAITED: Load(0, 200, options="--step 1"),
    "grids of a million blocks": Load(0, 200, options="--blocks 1000000"),
    "8 streams": Load(0, 50, options="--streams 8"),
    "8 processes": Load(0, 200, processes=8),
}
_SMALL: Final = Load(0, 20)
_LOADS: Final = {
    "small kernels": _SMALL,
    "big kernels": Load(0, 50_000),
    "graphs": Load(0, 20, "graph"),
    "4 processes": Load(0, 100, processes=4),
    "copies": Load(0, COPY_US, "copy"),
    "small kernels of 15 kinds": Load(0, 5, options="--to-us 35 --kinds 15"),
    "150 kinds, kernels of 20 ms beside": Load(0, 20, options="--kinds 150 --beside 20000"),
}
_RUNTIME: Final = Load(0, 20, "runtime")
_STOP: Final = "arbiters stop for 3.9 s"
_RESTART: Final = "parents are killed, an arbiter begins 2 s later"
_WITH_BIG: Final = (_STOP, _RESTART)
_HEADER: Final = ("containers", "requested", "got", "added wait p50 / p99 / ideal p50 / p99, ms")
_AT_MOST: Final = {
    "launch_without_cap_added_ns": 5.0,
    "launch_capped_added_ns": 50.0,
    "launch_checked_added_ns": 50.0,
    "back_to_back_added_percent": 0.5,
    "one_error_mean_points": 1.0,
    "one_second_error_p95_points": 4.0,
    "several_error_most_points": 2.0,
    "loss_percent": 2.0,
    "fault_error_most_points": 10.0,
    "fault_most_of_share": 2.0,
}


@dataclass
class _Group:
    """The rows of one load. errors: for each row, the error of the share in percentage points.
    seconds: the same error in each second of these rows."""

    errors: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def p95(self) -> float:
        return sorted(self.seconds)[int(len(self.seconds) * 0.95)]


@dataclass
class _Table(Result):
    """The result of the benchmark. groups: the groups of rows, by the name of their load."""

    groups: dict[str, _Group] = field(default_factory=dict)

    def row(self, *cells: str) -> None:
        """Add a row, and print it at once, because the whole table takes half an hour."""
        self.rows.append(cells)
        sys.stderr.write(f"{'  '.join(cells)}\n")

    def most(self, figure: str, value: float) -> None:
        self.figures[figure] = max(self.figures.get(figure, value), value)

    def one(self, host: Host, name: str, load: Load, seconds: int) -> None:
        """Add a row for one container with a forced share: its share, and its launches' added wait.
        The launch rate of a program that waits for each launch varies with the machine. Therefore
        such a program is measured without a limit both before and after."""
        waits = name == _WAITED
        alone = host.alone(load, seconds) if waits else host.alone(load)
        got = host.run([replace(load, forced=True)], seconds)[0]
        after = host.alone(load, seconds, again=True) if waits else alone
        whole = (alone.share + after.share) / 2
        share = got.share / whole * 100
        group = self.groups.setdefault(name, _Group())
        group.errors.append(abs(share - load.percent))
        group.seconds += [abs(second / whole * 100 - load.percent) for second in got.seconds]
        added = (max(got.p50_us - alone.p50_us, 0), max(got.p99_us - alone.p99_us, 0))
        ideal = (load.ideal_added_us(quantile, whole) for quantile in (0.5, 0.99))
        times = " / ".join(f"{us / 1000:.1f}" for us in (*added, *ideal))
        self.row(f"forced, {name}", str(load.percent), f"{share:.2f}", times)

    def several(
        self,
        host: Host,
        name: str,
        loads: Sequence[Load],
        seconds: int,
        meanwhile: Callable[[], None] = lambda: None,
        limited: bool = True,
    ) -> Sequence[float]:
        """Run containers that saturate the GPU at the same time, and return the share of each."""
        got = host.run(loads, seconds, limited=limited, meanwhile=meanwhile)
        shares = [
            each.share / host.alone(load).share * 100 for each, load in zip(got, loads, strict=True)
        ]
        wanted = " ".join(str(load.percent) for load in loads)
        found = " ".join(f"{share:.2f}" for share in shares)
        self.row(name, wanted, found, f"loss {100 - sum(shares):.2f}")
        return shares


def _error(loads: Sequence[Load], shares: Sequence[float]) -> float:
    return max(abs(share - load.percent) for share, load in zip(shares, loads, strict=True))


def _ones(table: _Table, host: Host, seconds: int, quick: bool) -> None:
    for us in (50, 5_000) if quick else (5, 50, 500, 5_000, 50_000):
        for percent in (30, 70) if quick else range(10, 100, 10):
            table.one(host, f"kernels of {us} us", Load(percent, us), seconds)
    for name, load in _MODES.items():
        for percent in () if quick else (10, 30, 50, 70, 90):
            table.one(host, name, replace(load, percent=percent), seconds)
    for name, group in table.groups.items():
        about = f"p95 of seconds {group.p95:.2f}"
        table.row(f"mean error, {name}", "", f"{mean(group.errors):.2f}", about)
        table.most("one_error_mean_points", mean(group.errors))
        table.most("one_second_error_p95_points", group.p95)


def _pair(a: int, b: int, load: Load, other: Load) -> Sequence[Load]:
    return replace(load, percent=a), replace(other, percent=b)


def _groups(quick: bool) -> Iterator[tuple[str, Sequence[Load]]]:
    for a, b in ((30, 70),) if quick else ((10, 90), (30, 70), (50, 50)):
        for name, load in _LOADS.items():
            yield name, _pair(a, b, load, load)
            if load is not _SMALL:
                yield f"{name} beside small kernels", _pair(a, b, load, _SMALL)
    yield "launches as by NVIDIA's runtime", _pair(30, 70, _RUNTIME, _RUNTIME)
    for name, load in _LOADS.items():
        if not quick or load is _SMALL:
            yield name, [replace(load, percent=each) for each in (20, 30, 50)]
    if not quick:
        kinds = ("big kernels", "graphs", "small kernels")
        three = zip((20, 30, 50), kinds, strict=True)
        yield ", ".join(kinds), [replace(_LOADS[kind], percent=each) for each, kind in three]


def _several(table: _Table, host: Host, seconds: int, quick: bool) -> None:
    for name, loads in _groups(quick):
        shares = table.several(host, name, loads, seconds)
        table.most("several_error_most_points", _error(loads, shares))
        table.most("loss_percent", 100 - sum(shares))


def _stop(processes: Sequence[psutil.Process], stop_s: float) -> None:
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    time.sleep(stop_s)
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # it may have been killed meanwhile
            process.send_signal(signal.SIGCONT)


def _faults(table: _Table, host: Host, seconds: int, quick: bool) -> None:
    """Kill or stop arbiters or their parents in the middle of a measurement. On a node, the parent
    is the node agent. Only the first arbiter leases the GPU."""

    def kill(count: int | None) -> None:
        for arbiter in host.arbiters()[:count]:
            arbiter.kill()

    def parents() -> Sequence[psutil.Process]:
        return [psutil.Process(each.process.pid) for each in host.started]

    def restart() -> None:
        for parent in parents():
            parent.kill()
        time.sleep(2)
        restarted.enter_context(host.arbiter())

    faults: Mapping[str, Callable[[], None]] = {
        "the arbiter is killed": lambda: kill(1),
        "all arbiters are killed": lambda: kill(None),
        "arbiters stop for 1 s": lambda: _stop(host.arbiters(), 1),
        _STOP: lambda: _stop(host.arbiters(), 3.9),
        "arbiters' parents stop for 4 s": lambda: _stop(parents(), 4),
        "arbiters and parents stop for 4 s": lambda: _stop([*parents(), *host.arbiters()], 4),
        _RESTART: restart,
    }
    for name, fault in list(faults.items())[: 1 if quick else None]:

        def delayed(fault: Callable[[], None] = fault) -> None:
            time.sleep(min(3, seconds / 3))
            fault()

        for other in (_SMALL, _LOADS["big kernels"]) if name in _WITH_BIG else (_SMALL,):
            loads = _pair(30, 70, other, _SMALL)
            beside = "" if other is _SMALL else "; big kernels beside small"
            with ExitStack() as restarted:
                shares = table.several(host, f"{name}{beside}", loads, seconds, delayed)
            table.most("fault_error_most_points", _error(loads, shares))
            table.most("fault_most_of_share", max(shares[0] / 30, shares[1] / 70))


def _control(table: _Table, host: Host, seconds: int) -> None:
    """Measure shares without the library. They must be wrong, or the benchmark measures nothing."""
    loads = _pair(30, 70, _SMALL, _SMALL)
    shares = table.several(host, "control: no library", loads, seconds, limited=False)
    table.figures["control_error_points"] = _error(loads, shares)


def _back_to_back(table: _Table, host: Host, quick: bool) -> None:
    """Measure kernels that are far shorter than their launch, so the processor limits their rate.
    Runs with and without the library alternate, and the best of each counts."""
    best_us = [inf, inf]
    for _ in range(2 if quick else 6):
        for limited in (False, True):
            got = host.run([Load(100, 0.1)], 3, limited=limited)[0]
            best_us[limited] = min(best_us[limited], got.best_us)
    for us, name in zip(best_us, ("bare", "no cap"), strict=True):
        table.row(f"a launch of launches back to back, {name}", "", f"{us * 1000:.1f} ns", "")
    table.figures["back_to_back_added_percent"] = 100 * (best_us[True] / best_us[False] - 1)


def _launch_ns(program: Path, environment: Mapping[str, str], quick: bool) -> Mapping[str, float]:
    """Run bench-calls several times, and return the least nanoseconds by the name of the call."""
    command = [program, "30" if quick else "100", "20000", "1000"]
    found: dict[str, float] = {}
    for _ in range(3 if quick else 7):
        for line in output(command, environment).splitlines():
            name, ns, _ = line.split()
            found[name] = min(found.get(name, inf), float(ns))
    return found


def _open_lease(directory: Path) -> None:
    """Write a lease file with an open window and checks of launches."""
    now_ns = time.monotonic_ns()
    lease = lease_file.Lease(now_ns + _AN_HOUR_NS, now_ns, now_ns + _AN_HOUR_NS)
    with (directory / names.FILE_LEASE).open("r+b", buffering=0) as file:
        for write in (lease_file.check_launches(True), *lease_file.update(0, 1, lease)):
            os.pwrite(file.fileno(), write.data, write.offset)


def _costs(table: _Table, quick: bool, program: Path) -> None:
    with granted() as environment:
        bare = _launch_ns(program, environment, quick)
        free = _launch_ns(program, {**environment, **PRELOAD}, quick)
        _open_lease(Path(environment[names.ENV_DIR]))
        capped = _launch_ns(program, {**environment, **PRELOAD}, quick)
    table.figures["launch_without_cap_added_ns"] = free["launch"] - bare["launch"]
    table.figures["launch_capped_added_ns"] = capped["launch"] - bare["launch"]
    table.figures["launch_checked_added_ns"] = capped[_CHECKED] - bare[_CHECKED]
    for name, ns in (
        ("bare", bare["launch"]),
        ("no cap", free["launch"]),
        ("in an open window", capped["launch"]),
        ("on two streams in turn, bare", bare[_CHECKED]),
        ("on two streams in turn, each checked in an open window", capped[_CHECKED]),
    ):
        table.row(f"a launch, {name}", "", f"{ns:.1f} ns", "")


def run(quick: bool) -> Result:
    load, calls = built("cuda-load", "bench-calls")
    seconds = 3 if quick else 10
    table = _Table(_HEADER, at_most=_AT_MOST, at_least={"control_error_points": 15.0})
    _costs(table, quick, calls)
    with host(load) as simulated:
        _back_to_back(table, simulated, quick)
        _ones(table, simulated, seconds, quick)
        _several(table, simulated, seconds, quick)
        _faults(table, simulated, seconds, quick)
        _control(table, simulated, seconds)
    return table
