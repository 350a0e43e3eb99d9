"""The tables of faults and of containers in docs/failures.md.

A row's third cell has between backquotes the literal text of a message. "..." is any text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tests.support import ROOT, table_below

DOCUMENT: Final = ROOT / "docs/failures.md"


@dataclass(frozen=True, slots=True)
class Row:
    """sees: what the pod's author sees, or the agent's report, or "" for nothing. test: the test of
    the row that needs the least set-up, with the case in brackets if it has several."""

    sees: str
    test: str

    def matches(self, text: str) -> bool:
        """Return whether the text has all literal parts of the row. False if the row has none."""
        fragments = re.findall("`([^`]+)`", self.sees)
        patterns = [re.escape(each).replace(r"\.\.\.", ".*") for each in fragments]
        return bool(patterns) and all(re.search(each, text) for each in patterns)


def _rows(heads: str) -> list[Row]:
    table = table_below(DOCUMENT.read_text(), heads)
    return [Row(sees, test.strip("`")) for _, _, sees, test in table]


FAILURE_ROWS: Final = _rows("failure | effect | message | test")
CONTAINER_ROWS: Final = _rows(
    "container | action of the agent | result for the pod's author | test"
)
