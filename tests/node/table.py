"""The tables of faults and of containers in docs/failures.md.

In a row's third cell text between backquotes appears literally. "..." stands for any text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tests.support import ROOT, table_below

DOCUMENT: Final = ROOT / "docs/failures.md"


@dataclass(frozen=True, slots=True)
class Row:
    """sees: what the pod's author sees, or the report, or "" for nothing. test: its test at the
    lowest tier that shows the behaviour, with the case in brackets if there are several."""

    sees: str
    test: str

    def matches(self, text: str) -> bool:
        """Return whether the text has all literal parts of the row, and the row has any."""
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
