"""Measures what the library adds to a launch: with a driver that returns at once, and on the
simulated GPU.

Processes of one program differ by several percent, because its pages lie elsewhere in each. So many
processes run, with and without the library in turn.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import inf
from pathlib import Path
from statistics import median, quantiles
from typing import Final

from bench import Result
from bench.loads import Host, Load
from bench.native import PRELOAD, output
from gpuslice.contract import lease_file, names
from traces.host import granted

_TWO_STREAMS: Final = "launch_on_two_streams"
AT_MOST: Final = {
    "launch_without_cap_added_ns": 5.0,
    "launch_capped_added_ns": 50.0,
    "launch_on_two_streams_added_ns": 50.0,
    "back_to_back_added_percent": 0.5,
    "15_kinds_without_cap_added_ns": 1.0,
    "15_kinds_capped_added_ns": 25.0,
}


def back_to_back(result: Result, host: Host, quick: bool) -> None:
    """Measure kernels that are far shorter than their launch, so the processor limits their rate.
    The time counts that a quarter of the processes beat: some take much longer than the others."""
    found: Mapping[str, list[float]] = {"bare": [], "no cap": []}
    for _ in range(2 if quick else 12):
        for name, times in found.items():
            got = host.run([Load(100, 0.1)], 1, limited=name != "bare")[0]
            times.append(got.best_us * 1000)
    ns = {name: quantiles(times, n=4)[0] for name, times in found.items()}
    for name, each in ns.items():
        result.row(f"a launch of launches back to back, {name}", "", f"{each:.1f} ns", "")
    result.figures["back_to_back_added_percent"] = 100 * (ns["no cap"] / ns["bare"] - 1)


def of_15_kinds(result: Result, host: Host, program: Path, quick: bool) -> None:
    """Measure launches of 15 kinds on the simulated GPU. Each process divides them by a call that
    the library does not hook, because the machine's clock varies."""
    percents = {"bare": None, "no cap": 100, "capped": 99}
    found: Mapping[str, list[float]] = {name: [] for name in percents}
    call_ns = inf
    for _ in range(2 if quick else 40):
        for name, percent in percents.items():
            _, ns, unhooked_ns = host.output([program, "60"], percent).split()
            found[name].append(float(ns) / float(unhooked_ns))
            call_ns = min(call_ns, float(unhooked_ns))
    calls = {name: median(each) for name, each in found.items()}
    for name, each in calls.items():
        text = f"{each * call_ns:.1f} ns"
        result.row(f"a launch of 15 kinds, {name}", "", text, f"{each:.2f} unhooked calls")
    for name, key in (("no cap", "without_cap"), ("capped", "capped")):
        result.figures[f"15_kinds_{key}_added_ns"] = (calls[name] - calls["bare"]) * call_ns


def _launch_ns(program: Path, environment: Mapping[str, str], quick: bool) -> Mapping[str, float]:
    """Run bench-calls several times, and return the least nanoseconds by the name of the call."""
    command = [program, "30" if quick else "100", "20000", "0"]
    found: dict[str, float] = {}
    for _ in range(3 if quick else 7):
        for line in output(command, environment).splitlines():
            name, ns, _ = line.split()
            found[name] = min(found.get(name, inf), float(ns))
    return found


def _open_lease(directory: Path) -> None:
    """Write a lease file with checks of launches, whose own part is the whole cycle."""
    lease = lease_file.Lease(1)
    with (directory / names.FILE_LEASE).open("r+b", buffering=0) as file:
        for write in (lease_file.check_launches(True), *lease_file.update(0, 1, lease)):
            os.pwrite(file.fileno(), write.data, write.offset)


def with_null_driver(result: Result, program: Path, quick: bool) -> None:
    with granted() as environment:
        bare = _launch_ns(program, environment, quick)
        free = _launch_ns(program, {**environment, **PRELOAD}, quick)
        _open_lease(Path(environment[names.ENV_DIR]))
        capped = _launch_ns(program, {**environment, **PRELOAD}, quick)
    result.figures["launch_without_cap_added_ns"] = free["launch"] - bare["launch"]
    result.figures["launch_capped_added_ns"] = capped["launch"] - bare["launch"]
    result.figures["launch_on_two_streams_added_ns"] = capped[_TWO_STREAMS] - bare[_TWO_STREAMS]
    for name, ns in (
        ("bare", bare["launch"]),
        ("no cap", free["launch"]),
        ("in an open window", capped["launch"]),
        ("on two streams in turn, bare", bare[_TWO_STREAMS]),
        ("on two streams in turn, in an open window", capped[_TWO_STREAMS]),
    ):
        result.row(f"a launch, {name}", "", f"{ns:.1f} ns", "")
