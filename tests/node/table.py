"""The one form of row of the tables in docs/failures.md, of containers and of faults.

In `sees`, text between backquotes appears literally; "..." stands for anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """given: the container, or the fault. does: the agent's action, or the effect. sees: what the
    pod's author sees, or the report; empty: nothing. test: its test, at the lowest tier that shows
    the behaviour, with the case in brackets where the test has several."""

    given: str
    does: str
    sees: str
    test: str

    def matches(self, text: str) -> bool:
        """Whether the text has the row's literal parts; a row without any matches nothing."""
        fragments = re.findall("`([^`]+)`", self.sees)
        patterns = [re.escape(each).replace(r"\.\.\.", ".*") for each in fragments]
        return bool(patterns) and all(re.search(each, text) for each in patterns)


def markdown(heads: str, rows: Sequence[Row]) -> str:
    lines = [heads, "|---|---|---|---|"]
    for row in rows:
        cells = (row.given, row.does, row.sees, f"`{row.test}`")
        lines.append("|" + "".join(f" {cell} |" if cell else " |" for cell in cells))
    return "".join(f"{line}\n" for line in lines)
