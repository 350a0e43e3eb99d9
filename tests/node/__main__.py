"""`python -m tests.node docs/failures.md` writes both tables into the document."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from tests.node.container_rows import CONTAINER_ROWS
from tests.node.failure_rows import FAILURE_ROWS
from tests.node.table import markdown

BEGIN: Final = "<!-- written by python -m tests.node -->\n"
END: Final = "<!-- end of what is written -->\n"
TABLES: Final = (
    ("| failure | effect | message | test |", FAILURE_ROWS),
    ("| container | action of the agent | result for the pod's author | test |", CONTAINER_ROWS),
)


def renewed(document: str) -> str:
    """The document with both tables replaced by current ones, each between its two marks."""
    written, left = "", document
    for heads, rows in TABLES:
        before, _, rest = left.partition(BEGIN)
        _, _, left = rest.partition(END)
        written += f"{before}{BEGIN}\n{markdown(heads, rows)}\n{END}"
    return written + left


def main(path: Path) -> None:
    path.write_text(renewed(path.read_text()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
