"""Measures what the library adds to driver calls and to program starts.

The driver returns at once. Each pair of figures, with the library and without, is measured
alternately, in several processes. For calls, the fastest process counts, because work on the core's
other hardware thread slows a process by a factor of up to 1.6. For starts, the median counts. The
library cannot affect `machine`, which is the ratio of a calibration loop's times. The last rows
replay the calls of recordings (docs/recipes/development.md), as traces/cost.py describes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from bench import Result, calibration_s, starts
from bench.native import PRELOAD, built, output
from traces import cost
from traces.cost import Part
from traces.host import granted
from traces.plan import Process
from traces.replay import load
from traces.trace import files

_LIVE: Final = 1_000_000


@dataclass(frozen=True)
class Row:
    """One row of the table. about: its name. at_most: the goal for what the library adds, in
    `unit`. digits: how many are printed after the decimal point."""

    about: str
    unit: str
    at_most: float | None
    digits: int = 1


ROWS: Final[Mapping[str, Row]] = {
    "launch": Row("kernel launch", "ns", 5),
    "set_attribute": Row("cudaFuncSetAttribute of CUDA 13", "ns", 50),
    "memory_query": Row("cuMemGetInfo", "ns", 120),
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
"""The goal for how much a million live allocations lengthen the library's own time, in percent of
the time of allocate and free with no others live."""

_RECORDED: Final[Mapping[str, tuple[Row, str, Callable[[Process], Part]]]] = {
    "eager_step": (Row("training step", "ns", 1000), "d", lambda of: cost.shortest(of, "step")),
    "compiled_step": (
        Row("training step, compiled", "ns", 1000),
        "d",
        lambda of: cost.shortest(of, "compiled step"),
    ),
    "burst": (Row("burst of cuBLASLt", "ns", 20_000), "d", cost.burst),
    "graph_replay": (Row("graph replay", "ns", 50), "e", lambda of: cost.shortest(of, "replay")),
}
"""Rows of recordings: the row, the recording's letter, and the choice of the calls."""


@dataclass(frozen=True)
class Pair:
    """Times without and with the library. machine: the ratio of the calibration loop's times."""

    without: float
    with_it: float
    machine: float = 1.0


def _calls(program: Path, environment: Mapping[str, str], quick: bool) -> Mapping[str, Pair]:
    passes, calls = (25, 4_000) if quick else (60, 10_000)
    command: list[str | Path] = [program, str(passes), str(calls), str(_LIVE)]
    without, with_it = (
        [line.split() for line in output(command, {**environment, **preload}).splitlines()]
        for preload in ({}, PRELOAD)
    )
    return {
        name: Pair(float(ns), float(with_ns), float(with_calibration) / float(calibration))
        for (name, ns, calibration), (_, with_ns, with_calibration) in zip(
            without, with_it, strict=True
        )
    }


def _starts(
    plain: Path, cuda: Path, environment: Mapping[str, str], quick: bool
) -> dict[str, Pair]:
    environments = (environment, {**environment, **PRELOAD})
    found = {}
    for name, program in (("plain_start", plain), ("cuda_start", cuda)):
        took_s, speed = starts.one(program, environments, 100 if quick else 400)
        found[name] = Pair(took_s[0] * 1e3, took_s[1] * 1e3, speed[1] / speed[0])
    many_s, speed = [], []
    for each in environments:
        many_s.append(starts.many(cuda, each, 300))
        speed.append(min(calibration_s() for _ in range(5)))
    found["cuda_start_300_p99"] = Pair(many_s[0] * 1e3, many_s[1] * 1e3, speed[1] / speed[0])
    return found


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


def _recorded(quick: bool) -> Iterator[tuple[str, Row, Pair]]:
    """Yield the rows of recordings. A row's time is the sum of its calls' times."""
    built("trace-replay", "trace_recorded_driver")
    with tempfile.TemporaryDirectory() as name:
        for key, (row, letter, find) in _RECORDED.items():
            scripts = Path(name) / key
            scripts.mkdir()
            (process, *_) = load(files(letter), scripts).processes
            part = find(process)
            without, added = cost.part_ns(part, scripts / process.name, 100 if quick else 1000)
            about = f"{row.about}, {part.last - part.first} calls"
            yield key, Row(about, row.unit, row.at_most), Pair(without, without + added)


def _add(result: Result, name: str, row: Row, pair: Pair) -> None:
    added = pair.with_it - pair.without
    result.add(f"{name}_without_{row.unit}", round(pair.without, row.digits))
    result.add(f"{name}_added_{row.unit}", round(added, row.digits), row.at_most)
    result.add(f"{name}_machine", round(pair.machine, 2))
    goal = f"{row.at_most:g}" if row.at_most is not None else ""
    cells = (f"{number:.{row.digits}f}" for number in (pair.without, pair.with_it, added))
    result.rows.append((row.about, row.unit, *cells, goal, f"{pair.machine:.2f}"))


def run(quick: bool) -> Result:
    calls, plain, cuda = built("bench-calls", "bench-plain-start", "bench-cuda-start")
    with granted() as environment:
        repetitions = [
            (_calls(calls, environment, quick), _starts(plain, cuda, environment, quick))
            for _ in range(7)
        ]
    measured = {
        **_summary([of_calls for of_calls, _ in repetitions], min),
        **_summary([of_starts for _, of_starts in repetitions], median),
    }
    result = Result(("", "unit", "without", "with", "added", "at most", "machine"))
    for name, row in ROWS.items():
        _add(result, name, row, measured[name])
    for name, base in _FLAT.items():
        live, none = (measured[each].with_it - measured[each].without for each in (name, base))
        growth = 100 * (live - none) / measured[base].with_it
        result.add(f"{name}_growth_percent", round(growth, 1), _GROWTH_PERCENT_AT_MOST)
        about, most = f"{ROWS[base].about}: more with 1,000,000", f"{_GROWTH_PERCENT_AT_MOST:g}"
        result.rows.append((about, "%", "", "", f"{growth:.1f}", most, ""))
    for each in _recorded(quick):
        _add(result, *each)
    return result
