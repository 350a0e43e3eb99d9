"""The library's cost for a program: driver calls and program start, beside the same without it.

Uses drivers that answer at once, so that only the library's time remains. Each pair of figures is
measured alternately, in several processes. For calls the fastest process counts: load on the core's
other thread slows all calls of a process by up to 1.6, and nothing makes one faster. For starts the
median counts. `machine` is the ratio of a calibration loop's times, with and without the library,
which cannot affect it. Recorded programs (a training step, a graph's replay) are measured as
bench/recorded.py describes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from bench import Result, recorded
from bench.native import BUILD, built, granted, output

_REPETITIONS: Final = 7
_LIVE: Final = 1_000_000
_PROCESSES: Final = 300
_LIBRARY: Final = BUILD / "lib" / "libvgpu.so"


@dataclass(frozen=True)
class Row:
    """One pair of figures: its name in the table, its unit, and the limit of what the library may
    add."""

    about: str
    unit: str
    at_most: float | None
    digits: int = 1


ROWS: Final[Mapping[str, Row]] = {
    "launch": Row("kernel launch", "ns", 5),
    "set_attribute": Row("cudaFuncSetAttribute of CUDA 13", "ns", 50),
    "alloc_free": Row("allocate, free", "ns", None),
    "alloc_free_live": Row("allocate, free a random one of 1,000,000", "ns", 120),
    "async": Row("stream-ordered", "ns", None),
    "async_live": Row("stream-ordered, a random one of 1,000,000", "ns", 120),
    "plain_start": Row("program without CUDA, from spawn to end", "ms", 0.15, 3),
    "cuda_start": Row("CUDA program, first allocation included", "ms", 2, 3),
    "cuda_start_300_p99": Row("300 CUDA programs at once, 99 % ready", "ms", 100),
}
_FLAT: Final = {"alloc_free_live": "alloc_free", "async_live": "async"}
_GROWTH_PERCENT_AT_MOST: Final = 20.0
"""Limit of what a million live allocations may add to the library's own time, in percent of the
whole pair with none."""


@dataclass(frozen=True)
class Pair:
    without: float
    with_it: float
    machine: float
    """Ratio of the calibration loop's time with the library to its time without."""


def _calls(program: Path, environment: Mapping[str, str], quick: bool) -> Mapping[str, Pair]:
    passes, calls = (25, 4_000) if quick else (60, 10_000)
    command: list[str | Path] = [program, str(passes), str(calls), str(_LIVE)]
    without, with_it = (
        [line.split() for line in output(command, {**environment, **preload}).splitlines()]
        for preload in ({}, {"LD_PRELOAD": str(_LIBRARY)})
    )
    return {
        name: Pair(float(ns), float(with_ns), float(with_calibration) / float(calibration))
        for (name, ns, calibration), (_, with_ns, with_calibration) in zip(
            without, with_it, strict=True
        )
    }


def _starts(
    programs: Sequence[Path], environment: Mapping[str, str], quick: bool
) -> dict[str, Pair]:
    launcher, plain, cuda = programs
    times = "100" if quick else "400"

    def pair(how: str, count: str, program: Path) -> Pair:
        figures = output([launcher, how, count, _LIBRARY, program], environment).split()
        return Pair(float(figures[0]) / 1e3, float(figures[1]) / 1e3, float(figures[2]))

    return {
        "plain_start": pair("one", times, plain),
        "cuda_start": pair("one", times, cuda),
        "cuda_start_300_p99": pair("many", str(_PROCESSES), cuda),
    }


def _summary(
    repetitions: Sequence[Mapping[str, Pair]], choose: Callable[[Iterable[float]], float]
) -> dict[str, Pair]:
    return {
        name: Pair(
            choose(repetition[name].without for repetition in repetitions),
            choose(repetition[name].with_it for repetition in repetitions),
            median(repetition[name].machine for repetition in repetitions),
        )
        for name in repetitions[0]
    }


def result(measured: Mapping[str, Pair]) -> Result:
    figures: dict[str, float] = {}
    at_most: dict[str, float] = {}
    table: list[Sequence[str]] = []
    added = {name: pair.with_it - pair.without for name, pair in measured.items()}
    for name, row in ROWS.items():
        pair = measured[name]
        key = f"{name}_added_{row.unit}"
        figures[f"{name}_without_{row.unit}"] = round(pair.without, row.digits)
        figures[key] = round(added[name], row.digits)
        figures[f"{name}_machine"] = round(pair.machine, 2)
        if row.at_most is not None:
            at_most[key] = row.at_most
        goal = f"{row.at_most:g}" if row.at_most is not None else ""
        numbers = (pair.without, pair.with_it, added[name])
        cells = (f"{number:.{row.digits}f}" for number in numbers)
        table.append((row.about, row.unit, *cells, goal, f"{pair.machine:.2f}"))
    for name, base in _FLAT.items():
        key = f"{name}_growth_percent"
        growth = 100 * (added[name] - added[base]) / measured[base].with_it
        figures[key] = round(growth, 1)
        at_most[key] = _GROWTH_PERCENT_AT_MOST
        about = f"{ROWS[base].about}: more with 1,000,000"
        table.append((about, "%", "", "", f"{growth:.1f}", f"{_GROWTH_PERCENT_AT_MOST:g}", ""))
    header = ("", "unit", "without", "with", "added", "at most", "machine")
    return Result(figures, at_most, header, table)


def _with_recorded(own: Result, quick: bool) -> Result:
    """The rows of recorded programs after this module's own."""
    figures, at_most, table = dict(own.figures), dict(own.at_most), list(own.rows)
    for each in recorded.measured(quick):
        figures[each.key] = round(each.added_ns, 1)
        at_most[each.key] = each.at_most_ns
        cells = (f"{ns:.1f}" for ns in (each.without_ns, each.with_ns, each.added_ns))
        table.append((each.about, "ns", *cells, f"{each.at_most_ns:g}", ""))
    return Result(figures, at_most, own.header, table)


def run(quick: bool) -> Result:
    calls, *starts = built("bench-calls", "bench-starts", "bench-plain-start", "bench-cuda-start")
    with granted() as environment:
        repetitions = [
            (_calls(calls, environment, quick), _starts(starts, environment, quick))
            for _ in range(_REPETITIONS)
        ]
    measured = {
        **_summary([of_calls for of_calls, _ in repetitions], min),
        **_summary([of_starts for _, of_starts in repetitions], median),
    }
    return _with_recorded(result(measured), quick)
