"""Measurements side by side in one run: what a part costs beside its rivals and beside nothing.

Never part of the tests: a figure here may miss its goal and nothing is broken. Each module has
run(quick) and is named in __main__'s table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Result:
    """Figures by name (the unit in the name), the goals that some have, and rows for people."""

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
        """By figure; of one that has two, both."""
        said = {name: [f"<= {goal}"] for name, goal in self.at_most.items()}
        for name, goal in self.at_least.items():
            said.setdefault(name, []).append(f">= {goal}")
        return {name: ", ".join(goals) for name, goals in said.items()}
