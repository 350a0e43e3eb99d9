"""What the parts of the scheduler's bench have in common: figures, goals, and what people read."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

_ROUNDS: Final = 200_000
REFERENCE_MS: Final = 8.0
"""The calibration loop on a core of these machines that nobody else slows down (7.6 to 8.0)."""


@dataclass
class Figures:
    """Filled by one part after the other. Names have the unit at their end."""

    values: dict[str, float] = field(default_factory=dict)
    at_most: dict[str, float] = field(default_factory=dict)
    at_least: dict[str, float] = field(default_factory=dict)
    rows: list[Sequence[str]] = field(default_factory=list)

    def add(
        self,
        name: str,
        about: str,
        unit: str,
        value: float,
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> None:
        self.values[name] = round(value, 3)
        goals = []
        if at_most is not None:
            self.at_most[name] = at_most
            goals.append(f"<= {at_most:g}")
        if at_least is not None:
            self.at_least[name] = at_least
            goals.append(f">= {at_least:g}")
        shown = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        self.rows.append((about, unit, shown, ", ".join(goals)))


def calibration_ms() -> float:
    """A fixed piece of work of the interpreter's, by this process's own processor time: how fast
    the machine is now."""
    begun = time.process_time()
    total = 0
    for number in range(_ROUNDS):
        total += number & 7
    assert total
    return (time.process_time() - begun) * 1e3


def at_reference(per_core_s: float, calibration: float) -> float:
    """What is done in a second of a core, as it would be of one on which the calibration loop takes
    REFERENCE_MS: the same core is a third slower in one minute than in another here, as others use
    its machine."""
    return per_core_s * calibration / REFERENCE_MS


def cpu_s(pid: int) -> float:
    """Processor time of another process, all its threads, to the nanosecond: what /proc says of it
    is in hundredths of a second, as much as ten pods take. The clock's number is the kernel's
    (clock_getcpuclockid)."""
    return time.clock_gettime(~pid << 3 | 2)


def say(text: str) -> None:
    """What is being done, for whoever waits."""
    sys.stderr.write(f"  {text}\n")
    sys.stderr.flush()
