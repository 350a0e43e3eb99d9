"""Shares of a GPU's time in real time, on the simulated GPU, and what the library adds to a launch.

Costs of a launch are measured with drivers that answer at once. The machine must be quiet: the
simulated GPU, the programs and the arbiter share its cores.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Final

from bench import Result
from bench.loads import COPY_US, Host, Load, host
from bench.native import BUILD, built, granted, output
from contract import lease_file, names

_KERNELS_US: Final = (5, 50, 500, 5_000, 50_000)
_CAPS: Final = range(10, 100, 10)
_AN_HOUR_NS: Final = 3_600_000_000_000
_LIBRARY: Final = BUILD / "lib" / "libvgpu.so"

_MODES: Final = {
    "graphs of 20 kernels": Load(0, 200, "graph"),
    "cooperative launches": Load(0, 200, "cooperative"),
    "launches with attributes": Load(0, 200, "ex"),
    "each launch waited for": Load(0, 200, "wait"),
    "copies": Load(0, COPY_US, "copy"),
    "grids of a million blocks": Load(0, 200, blocks=1_000_000),
    "8 streams": Load(0, 50, streams=8),
    "8 processes": Load(0, 200, processes=8),
}
_SMALL: Final = Load(0, 20)
_LOADS: Final = {
    "small kernels": _SMALL,
    "big kernels": Load(0, 50_000),
    "graphs": Load(0, 20, "graph"),
    "4 processes": Load(0, 100, processes=4),
    "copies": _MODES["copies"],
}


class _Table:
    def __init__(self) -> None:
        self.figures: dict[str, float] = {}
        self.rows: list[tuple[str, ...]] = []
        self.errors: list[float] = []
        self.second_errors: list[float] = []

    def row(self, *cells: str) -> None:
        """Add it, and show it: the whole table takes half an hour."""
        self.rows.append(cells)
        sys.stderr.write(f"{'  '.join(cells)}\n")

    def most(self, figure: str, value: float) -> None:
        self.figures[figure] = max(self.figures.get(figure, value), round(value, 2))

    def one(self, host: Host, name: str, load: Load, seconds: int) -> None:
        """A container alone, with a forced share."""
        alone = host.alone(load)
        got = host.run([replace(load, forced=True)], seconds)[0]
        share = got.share / alone * 100
        self.errors.append(abs(share - load.percent))
        self.second_errors += [abs(second / alone * 100 - load.percent) for second in got.seconds]
        waits = f"{got.calls}; ideal p99 {load.ideal_p99_us:.0f} us"
        self.row(f"forced, {name}", str(load.percent), f"{share:.2f}", waits)

    def several(
        self,
        host: Host,
        name: str,
        loads: Sequence[Load],
        seconds: int,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Sequence[float]:
        """Containers at the same time, whose loads saturate the GPU; the share of each."""
        got = host.run(loads, seconds, meanwhile=meanwhile)
        shares = [
            each.share / host.alone(load) * 100 for each, load in zip(got, loads, strict=True)
        ]
        wanted = " ".join(str(load.percent) for load in loads)
        found = " ".join(f"{share:.2f}" for share in shares)
        self.row(name, wanted, found, f"loss {100 - sum(shares):.2f}")
        return shares


def _error(loads: Sequence[Load], shares: Sequence[float]) -> float:
    return max(abs(share - load.percent) for share, load in zip(shares, loads, strict=True))


def _ones(table: _Table, host: Host, seconds: int, quick: bool) -> None:
    for us in (50, 5_000) if quick else _KERNELS_US:
        for percent in (30, 70) if quick else _CAPS:
            table.one(host, f"kernels of {us} us", Load(percent, us), seconds)
    for name, load in _MODES.items():
        for percent in () if quick else (10, 30, 50, 70, 90):
            table.one(host, name, replace(load, percent=percent), seconds)
    table.figures["one_error_mean_points"] = round(mean(table.errors), 2)
    ordered = sorted(table.second_errors)
    table.figures["one_second_error_p95_points"] = round(ordered[int(len(ordered) * 0.95)], 2)


def _groups(quick: bool) -> Iterator[tuple[str, Sequence[Load]]]:
    for a, b in ((30, 70),) if quick else ((10, 90), (30, 70), (50, 50)):
        for name, load in _LOADS.items():
            other = "small kernels" if load is _SMALL else f"{name} beside small kernels"
            yield other, (replace(load, percent=a), replace(_SMALL, percent=b))
        yield "big kernels", [replace(_LOADS["big kernels"], percent=each) for each in (a, b)]
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


def _faults(table: _Table, host: Host, seconds: int) -> None:
    """Of all arbiters, or of the one that leases the GPU, in the middle of the measurement."""

    def kill(count: int | None) -> None:
        time.sleep(seconds / 3)
        for arbiter in host.arbiters()[:count]:
            arbiter.kill()

    def stop() -> None:
        time.sleep(seconds / 3)
        stopped = host.arbiters()
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for arbiter in stopped:
                arbiter.send_signal(number)
            time.sleep(1)

    faults: Mapping[str, Callable[[], None]] = {
        "the arbiter is killed": lambda: kill(1),
        "all arbiters are killed": lambda: kill(None),
        "arbiters stop for a second": stop,
    }
    loads = (replace(_SMALL, percent=30), replace(_SMALL, percent=70))
    for name, fault in faults.items():
        shares = table.several(host, name, loads, seconds, fault)
        table.most("fault_error_most_points", _error(loads, shares))
        table.most("fault_most_of_share", max(shares[0] / 30, shares[1] / 70))


def _controls(table: _Table, host: Host, seconds: int) -> None:
    """Without the library; and what the library leaves to a program without a cap."""
    loads = (replace(_SMALL, percent=30), replace(_SMALL, percent=70))
    got = [each.share for each in host.run(loads, seconds, limited=False)]
    table.row("control: no library", "30 70", f"{got[0]:.2f} {got[1]:.2f}", "")
    table.figures["control_error_points"] = round(_error(loads, got), 2)
    free = Load(100, 50)
    plain = host.run([free], seconds, limited=False)[0].share
    table.figures["without_cap_of_plain"] = round(host.run([free], seconds)[0].share / plain, 4)


def _launch_ns(program: Path, environment: Mapping[str, str], quick: bool) -> float:
    command = [program, "30" if quick else "100", "20000", "1000"]
    return min(
        float(line.split()[1])
        for _ in range(3 if quick else 7)
        for line in output(command, environment).splitlines()
        if line.startswith("launch ")
    )


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
        table.row(f"a launch, {name}", "", f"{ns:.1f} ns", "")


def run(quick: bool) -> Result:
    load, calls = built("cuda-load", "bench-calls")
    seconds = 3 if quick else 10
    table = _Table()
    _costs(table, quick, calls)
    with host(load) as simulated:
        _ones(table, simulated, seconds, quick)
        _several(table, simulated, seconds, quick)
        _faults(table, simulated, seconds)
        _controls(table, simulated, seconds)
    at_most = {
        "launch_without_cap_added_ns": 5.0,
        "launch_capped_added_ns": 50.0,
        "one_error_mean_points": 1.0,
        "one_second_error_p95_points": 4.0,
        "several_error_most_points": 2.0,
        "loss_percent": 2.0,
        "fault_error_most_points": 10.0,
        "fault_most_of_share": 2.0,
    }
    at_least = {"without_cap_of_plain": 0.995, "control_error_points": 15.0}
    return Result(
        table.figures, at_most, ("containers", "requested", "got", ""), table.rows, at_least
    )
