"""Tables of the loads' runs, in Markdown, and progress on standard error."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def say(text: str) -> None:
    sys.stderr.write(f"{datetime.now(UTC):%H:%M:%S}  {text}\n")
