"""Shared by the scheduler's benchmarks: figures, goals and table rows."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

_TURNS: Final = 200_000
_SAMPLES: Final = 5


@dataclass(frozen=True, slots=True)
class Round:
    """A figure as measured, and the calibration loop before and after it."""

    value: float
    before_ms: float
    after_ms: float


@dataclass
class Figures:
    """Collects the results of all parts. Names end with the unit."""

    values: dict[str, float] = field(default_factory=dict)
    at_most: dict[str, float] = field(default_factory=dict)
    at_least: dict[str, float] = field(default_factory=dict)
    rows: list[Sequence[str]] = field(default_factory=list)

    def add(
        self,
        name: str,
        value: float,
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> None:
        self.values[name] = round(value, 3)
        goals = []
        if at_most is not None:
            self.at_most[name] = at_most
            goals.append(f"<= {at_most:g}")
        if at_least is not None:
            self.at_least[name] = at_least
            goals.append(f">= {at_least:g}")
        self.rows.append((name, _shown(value), ", ".join(goals)))

    def add_rounds(self, name: str, rounds: Sequence[Round], at_least: float | None) -> None:
        """Adds the median of the rounds as the figure, with the goal. The JSON has each round; the
        table has their spread and the machine's speed."""
        values = [each.value for each in rounds]
        self.add(name, median(values), at_least=at_least)
        spread = f"{_shown(min(values))} to {_shown(max(values))}"
        samples = [ms for each in rounds for ms in (each.before_ms, each.after_ms)]
        machine = f"{min(samples):.1f} to {max(samples):.1f}"
        self.rows.append((f"{name}, by round", spread, ""))
        self.rows.append((f"{name}, calibration loop, ms", machine, ""))
        for number, each in enumerate(rounds, 1):
            self.values[f"{name}_round_{number}"] = round(each.value, 3)
            self.values[f"{name}_round_{number}_before_ms"] = round(each.before_ms, 2)
            self.values[f"{name}_round_{number}_after_ms"] = round(each.after_ms, 2)


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def calibration_ms() -> float:
    """A fixed piece of interpreter work, in this thread's own processor time: the machine's current
    speed. The least of five, since other load can only slow it down."""
    return min(_calibrated_ms() for _ in range(_SAMPLES))


def _calibrated_ms() -> float:
    begun = time.thread_time()
    total = 0
    for number in range(_TURNS):
        total += number & 7
    assert total
    return (time.thread_time() - begun) * 1e3


def cpu_s(pid: int) -> float:
    """Processor time of another process, all threads, in nanosecond resolution: /proc has
    hundredths of a second, the time of ten pods. The clock's id is the kernel's
    (clock_getcpuclockid)."""
    return time.clock_gettime(~pid << 3 | 2)


def say(text: str) -> None:
    """Reports progress."""
    sys.stderr.write(f"  {text}\n")
    sys.stderr.flush()
