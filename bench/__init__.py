"""Measurements side by side in one run: what a part costs beside its rivals and beside nothing.

Never part of the tests: a figure here may miss its goal and nothing is broken. Each module has
run(quick) and is named in __main__'s table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """Figures by name (the unit in the name), what each must not exceed, and rows for people."""

    figures: Mapping[str, float]
    at_most: Mapping[str, float]
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def met(self) -> bool:
        return all(self.figures[name] <= goal for name, goal in self.at_most.items())
