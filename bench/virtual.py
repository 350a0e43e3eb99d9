"""Judges the shares that programs get in virtual time: the real arbiter and the real limiter around
a modelled GPU (model.py).

A case is a group of containers. The progress of a program is its rate of steps, divided by its rate
alone. A container's floor is its share of a whole program's progress, less a tolerance. Programs
that use at least _GPU_BOUND of the GPU alone are judged by their GPU time instead. Each case runs
with several seeds of the arbiter's delays, and the worst of each figure counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing import Pool
from typing import Final

from bench import Result
from bench.model import Container, Model, Outcome, Program, alone
from gpuslice.contract.grant_file import Policy

_DECODE_US: Final = (5, 8, 20, 6, 14, 12, 20, 9, 5, 18, 7, 16, 20, 11, 10)


def _kernels(us: float, launches: int, gap_us: float = 5, pause_us: float = 0) -> Program:
    return Program((us,), gap_us=gap_us, launches=launches, step_gap_us=pause_us)


def _decode(pause_us: float) -> Program:
    return Program(_DECODE_US, gap_us=35, launches=300, step_gap_us=pause_us)


PROGRAMS: Final = {
    "5 us": _kernels(5, 400, 2),
    "50 us": _kernels(50, 100, 4),
    "500 us": _kernels(500, 20, 4),
    "1 ms": _kernels(1_000, 8),
    "1.4 ms": _kernels(1_400, 4),
    "5 ms": _kernels(5_000, 2),
    "50 ms": _kernels(50_000, 1),
    "decode": _decode(600),
    "20 us, gaps of 20": _kernels(20, 50, 20, 30),
    "20 us, gaps of 60": _kernels(20, 50, 60, 30),
    "20 us, gaps of 200": _kernels(20, 50, 200, 30),
    "each 45 us awaited": _kernels(45, 1, 0, 38),
    "each 20 us awaited": _kernels(20, 1, 0, 100),
    "each 5 ms awaited": _kernels(5_000, 1, 0, 5_000),
    "bursts, pauses of 20 ms": _kernels(1_000, 50, 5, 20_000),
    "bursts, pauses of 100 ms": _kernels(1_400, 70, 5, 100_000),
    "decode, pauses of 20 ms": _decode(20_000),
    "decode, pauses of 50 ms": _decode(50_000),
}
_GPU_BOUND: Final = 0.97
_INTERMITTENT: Final = 0.85
"""The steps of programs that use less than this of the GPU alone are judged too."""
_SETTLE_S: Final = 1.5
_SEEDS: Final = (1, 2, 3)
SWITCH_US: Final = 150
"""What the GPU takes to change between contexts. An H100 took 0.15 to 0.2 ms."""
AT_MOST: Final = {
    "gpu_bound_error_most_points": 1.5,
    "below_floor_most_points": 0.0,
    "step_p50_most_of_limit": 1.0,
    "step_p99_most_above_limit_ms": 25.0,
    "capped_error_most_points": 1.5,
    "beside_pauses_p50_most_of_alone": 1.2,
    "beside_decode_p50_most_of_alone": 1.3,
    "fault_below_share_most_points": 10.0,
    "fault_most_of_share": 2.0,
}
AT_LEAST: Final = {
    "pair_total_least_percent": 94.0,
    "mix_total_least_percent": 90.0,
    "beside_pauses_least_percent": 95.0,
    "beside_decode_least_percent": 90.0,
    "beside_awaited_least_percent": 90.0,
    "background_of_pauses_least_percent": 80.0,
    "background_of_decode_least_percent": 50.0,
}


@dataclass(frozen=True)
class Entry:
    """A container: its program, its share in percent, and its policy."""

    program: str
    percent: int
    policy: Policy = Policy.FAIR


@dataclass(frozen=True)
class Case:
    """Containers on one GPU. group: begins the printed name. tolerance: of the floors."""

    group: str
    entries: tuple[Entry, ...]
    slice_us: int = 2000
    tolerance: float = 0.02
    seed: int = 1

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(entry.program for entry in self.entries)

    @property
    def alone(self) -> Sequence[Outcome]:
        return [_alone(name, self.slice_us) for name in self.names]

    def needs(self) -> Sequence[float]:
        """Return the parts of the GPU's time that the programs use alone."""
        return [each.share["a"] / 100 for each in self.alone]


@dataclass(frozen=True)
class Got:
    """What the containers of a case got, in the order of its entries. progress, gpu: as parts of 1.
    slower: the median step's time, divided by that alone. p99_ms: of steps."""

    progress: Sequence[float]
    gpu: Sequence[float]
    slower: Sequence[float]
    p99_ms: Sequence[float]


@dataclass(frozen=True)
class Row:
    """cells: the printed row, of the first seed. figures: the row's part in the figures of the
    table, of all seeds."""

    cells: tuple[str, ...]
    figures: Mapping[str, float]


@lru_cache
def _alone(name: str, slice_us: int) -> Outcome:
    return alone(PROGRAMS[name], 3, slice_us=slice_us)


def measured(case: Case, seconds: int, limited: bool = True) -> Got:
    containers = {
        str(number): Container(entry.percent, (PROGRAMS[entry.program],), entry.policy)
        for number, entry in enumerate(case.entries)
    }
    slice_us, seed = case.slice_us, case.seed
    model = Model(containers, limited, slice_us=slice_us, switch_us=SWITCH_US, seed=seed)
    outcome = model.measure(seconds, _SETTLE_S)
    each = list(zip(containers, case.alone, strict=True))
    return Got(
        [outcome.rate[key] / alone.rate["a"] for key, alone in each],
        [outcome.share[key] / 100 for key in containers],
        [outcome.p50_us[key] / alone.p50_us["a"] for key, alone in each],
        [outcome.p99_us[key] / 1000 for key in containers],
    )


@lru_cache
def _hardware(names: tuple[str, ...], slice_us: int, seconds: int) -> Sequence[float]:
    """Return the progress of the programs by the GPU's own slices, without limits."""
    entries = tuple(Entry(name, 100 // len(names)) for name in names)
    return measured(Case("", entries, slice_us), seconds, limited=False).progress


def reference(hardware: Sequence[float], floors: Sequence[float]) -> float:
    """Return the most progress in total that keeps all floors, if time is divided among the GPU's
    own slices and exclusive time of single programs. hardware: the progress by those slices."""
    total = sum(hardware)
    if all(got >= floor for got, floor in zip(hardware, floors, strict=True)):
        return total

    def possible(part: float) -> bool:
        missing = (max(0, b - part * a) for a, b in zip(hardware, floors, strict=True))
        return sum(missing) <= 1 - part + 1e-9

    part = max((step / 1000 for step in range(1001) if possible(step / 1000)), default=0.0)
    return max(part * total + 1 - part, 1.0)


def _percents(values: Sequence[float]) -> str:
    return " ".join(f"{100 * value:.1f}" for value in values)


def row(case: Case, shares: Sequence[float], about: str, figures: Mapping[str, float]) -> Row:
    wanted = " ".join(
        f"{entry.percent}{'' if entry.policy is Policy.FAIR else f' {entry.policy}'}"
        for entry in case.entries
    )
    name = f"{case.group}: {' | '.join(case.names)}"
    return Row((name, wanted, _percents(shares), about), figures)


def _times(got: Got) -> str:
    slower = " ".join(f"{value:.2f}" for value in got.slower)
    return f"p50 x {slower}; p99 {' '.join(f'{ms:.1f}' for ms in got.p99_ms)} ms"


def fair(case: Case, seconds: int) -> Row:
    """Judge containers that share all of the GPU's time."""
    got, needs = measured(case, seconds), case.needs()
    if min(needs) >= _GPU_BOUND:
        errors = [
            100 * abs(part - entry.percent / 100)
            for part, entry in zip(got.gpu, case.entries, strict=True)
        ]
        return row(case, got.gpu, _times(got), {"gpu_bound_error_most_points": max(errors)})
    floors = [entry.percent / 100 - case.tolerance for entry in case.entries]
    hardware = _hardware(case.names, case.slice_us, seconds)
    total = 100 * sum(got.progress) / reference(hardware, floors)
    below = [100 * (b - a) for a, b in zip(got.progress, floors, strict=True)]
    kind = "pair" if len(floors) == 2 else "mix"
    figures = {"below_floor_most_points": max(below), f"{kind}_total_least_percent": total}
    about = f"hardware {_percents(hardware)}; total {total:.1f} %; {_times(got)}"
    return row(case, got.progress, about, {**figures, **_steps(case, got)})


def _steps(case: Case, got: Got) -> Mapping[str, float]:
    """Return how long the steps of intermittent programs take, beside their limits."""
    slowest, above_ms = [], []
    for number, (entry, need) in enumerate(zip(case.entries, case.needs(), strict=True)):
        if need < _INTERMITTENT:
            limit = 2 if "awaited" in entry.program else 1.5
            limit *= max(1, need / (entry.percent / 100))
            slowest.append(got.slower[number] / limit)
            alone_ms = case.alone[number].p50_us["a"] / 1000
            above_ms.append(got.p99_ms[number] - limit * alone_ms)
    if not slowest:
        return {}
    return {"step_p50_most_of_limit": max(slowest), "step_p99_most_above_limit_ms": max(above_ms)}


def capped(case: Case, seconds: int) -> Row:
    """Judge containers with the policy `capped` by their GPU time, as far as they can use it."""
    got = measured(case, seconds)
    errors = [
        100 * abs(part - min(entry.percent / 100, need))
        for entry, part, need in zip(case.entries, got.gpu, case.needs(), strict=True)
        if entry.policy is Policy.CAPPED
    ]
    return row(case, got.gpu, _times(got), {"capped_error_most_points": max(errors)})


def background(case: Case, seconds: int) -> Row:
    """Judge a first program, and a second one in the background. The latter should use the time
    that the former leaves."""
    got = measured(case, seconds)
    name = case.names[0]
    kind = "pauses" if "pauses" in name else "awaited" if "awaited" in name else "decode"
    used = 100 * got.gpu[1] / (1 - got.gpu[0])
    figures = {
        f"beside_{kind}_least_percent": 100 * got.progress[0],
        f"background_of_{kind}_least_percent": used,
    }
    if kind != "awaited":
        figures[f"beside_{kind}_p50_most_of_alone"] = got.slower[0]
    return row(case, got.progress, f"{used:.0f} % of the time left; {_times(got)}", figures)


Judge = Callable[[Case, int], Row]


def _judged(task: tuple[Judge, Case, int, Sequence[int]]) -> Row:
    judge, case, seconds, seeds = task
    found = [judge(replace(case, seed=seed), seconds) for seed in seeds]
    figures = {
        name: _worst(name, [row.figures[name] for row in found]) for name in found[0].figures
    }
    missed = [
        f"; MISSED {name} {value:.2f}"
        for name, value in figures.items()
        if value > AT_MOST.get(name, value) or value < AT_LEAST.get(name, value)
    ]
    *cells, about = found[0].cells
    return Row((*cells, "".join((about, *missed))), figures)


def _worst(name: str, values: Sequence[float]) -> float:
    return min(values) if "_least_" in name else max(values)


def rows(
    tasks: Sequence[tuple[Judge, Case]], seconds: int, seeds: Sequence[int] = _SEEDS
) -> Iterator[Row]:
    """Judge the cases in two processes. The order of the rows is that of the tasks."""
    with Pool(2) as pool:
        yield from pool.imap(_judged, [(*task, seconds, seeds) for task in tasks])


def add(result: Result, row: Row) -> None:
    """Add the row, and keep the worst of each figure."""
    result.row(*row.cells)
    for name, value in row.figures.items():
        result.figures[name] = _worst(name, [result.figures.get(name, value), value])
