"""The time that the library adds to PyTorch's driver calls, over a driver that answers at once.

The calls are those of recordings (docs/development.md): a training step run eagerly and one
compiled, a burst of cuBLASLt in which functions get an attribute, and the replay of a graph.
traces/cost.py describes the measurement.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.native import built
from traces import cost
from traces.cost import Part
from traces.plan import Process
from traces.recordings import files
from traces.replay import load


@dataclass(frozen=True)
class Row:
    """Calls of one recording that are measured together."""

    about: str
    letter: str
    find: Callable[[Process], Part]
    at_most_ns: float


@dataclass(frozen=True)
class Figure:
    """Nanoseconds for all calls of a row together."""

    key: str
    about: str
    without_ns: float
    added_ns: float
    at_most_ns: float

    @property
    def with_ns(self) -> float:
        return self.without_ns + self.added_ns


ROWS: Final[Mapping[str, Row]] = {
    "eager_step": Row("training step", "d", lambda of: cost.shortest(of, "step"), 1000),
    "compiled_step": Row(
        "training step, compiled", "d", lambda of: cost.shortest(of, "compiled step"), 1000
    ),
    "burst": Row("burst of cuBLASLt", "d", cost.burst, 20_000),
    "graph_replay": Row("graph replay", "e", lambda of: cost.shortest(of, "replay"), 50),
}


def measured(quick: bool) -> Iterator[Figure]:
    """The times of the rows, each the median of several processes."""
    built("trace-replay", "trace_recorded_driver")
    with tempfile.TemporaryDirectory() as name:
        for letter in sorted({row.letter for row in ROWS.values()}):
            scripts = Path(name) / letter
            scripts.mkdir()
            (process, *_) = load(files(letter), scripts).processes
            for key, row in ROWS.items():
                if row.letter != letter:
                    continue
                part = row.find(process)
                passes = 100 if quick else 1000
                without, added = cost.part_ns(part, scripts / part.process.name, passes)
                calls = part.last - part.first
                about = f"{row.about}, {calls} calls"
                yield Figure(f"{key}_added_ns", about, without, added, row.at_most_ns)
