"""Benchmarks that measure, in one run, a component beside its rivals and beside nothing.

Not part of the tests: a figure that misses its goal is no failure. Each module has run(quick) and
is listed in __main__'s table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Result:
    """Figures by name (with the unit in the name), goals of some of them, and table rows."""

    figures: Mapping[str, float]
    at_most: Mapping[str, float]
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    at_least: Mapping[str, float] = field(default_factory=dict)

    @property
    def met(self) -> bool:
        small = all(self.figures[name] <= goal for name, goal in self.at_most.items())
        return small and all(self.figures[name] >= goal for name, goal in self.at_least.items())

    @property
    def goals(self) -> Mapping[str, str]:
        """Return the goals by figure, both of a figure that has two."""
        text_of = {name: [f"<= {goal}"] for name, goal in self.at_most.items()}
        for name, goal in self.at_least.items():
            text_of.setdefault(name, []).append(f">= {goal}")
        return {name: ", ".join(goals) for name, goals in text_of.items()}
