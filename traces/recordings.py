"""The recordings of traces/data: a letter names one, and each of its files is one process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

DATA: Final = Path(__file__).parent / "data"
LETTERS: Final = sorted({path.name.split("-")[0] for path in DATA.glob("*.trace.gz")})


def files(letter: str) -> Sequence[Path]:
    """The traces of that recording."""
    return sorted(DATA.glob(f"{letter}-*.trace.gz"))
