"""Benchmarks. Each run measures a component of gpuslice, its rivals, and the case without any.

Benchmarks are not part of the tests: a figure that misses its goal is no failure. Each module in
__main__'s table has a function run(quick).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass
class Result:
    """The result of a benchmark. figures: by name, which includes the unit. at_most, at_least: the
    goals of some figures. header, rows: the printed table."""

    header: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    at_most: dict[str, float] = field(default_factory=dict)
    at_least: dict[str, float] = field(default_factory=dict)

    def add(
        self, name: str, value: float, at_most: float | None = None, at_least: float | None = None
    ) -> None:
        self.figures[name] = value
        if at_most is not None:
            self.at_most[name] = at_most
        if at_least is not None:
            self.at_least[name] = at_least

    def most(self, name: str, value: float) -> None:
        self.figures[name] = max(self.figures.get(name, value), value)

    def row(self, *cells: str) -> None:
        """Add a row, and print it at once, because some tables take a quarter of an hour."""
        self.rows.append(cells)
        sys.stderr.write(f"{'  '.join(cells)}\n")

    @property
    def met(self) -> bool:
        small = all(self.figures[name] <= goal for name, goal in self.at_most.items())
        return small and all(self.figures[name] >= goal for name, goal in self.at_least.items())

    @property
    def goals(self) -> Mapping[str, str]:
        """Return the goals of each figure as a text."""
        text_of = {name: [f"<= {goal:g}"] for name, goal in self.at_most.items()}
        for name, goal in self.at_least.items():
            text_of.setdefault(name, []).append(f">= {goal:g}")
        return {name: ", ".join(goals) for name, goals in text_of.items()}


def calibration_s(turns: int = 2000) -> float:
    """Return this thread's time for a fixed piece of work, which shows the machine's speed now."""
    begun_s = time.thread_time()
    total = 0
    for number in range(turns):
        total += number & 7
    assert total
    return time.thread_time() - begun_s
