"""How much all callers together may search in a second.

Requests of several containers need searches, whose cost tenants choose. A call takes its steps from
here: at most MAX_A_CALL, so that none holds the event loop for long, and PER_SECOND in the long
run. A call of kube-scheduler gets MIN_A_CALL however little is left, so that the searches of one
tenant never take away those of others; kube-scheduler makes one such call at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from scheduler.core.search import MOST_STEPS, Steps

PER_SECOND: Final = 4_000
"""Steps of some 30 us each: an eighth of a core."""
MAX_A_CALL: Final = 2 * MOST_STEPS
"""Enough for the search on one node, however many containers and moments the request has."""
MIN_A_CALL: Final = 100


class Budget:
    """Full at first."""

    def __init__(self) -> None:
        self._left = float(PER_SECOND)

    def refill(self, seconds: float) -> None:
        """So much time has passed."""
        self._left = min(PER_SECOND, self._left + max(0.0, seconds) * PER_SECOND)

    @contextmanager
    def steps(self, at_most: int = MAX_A_CALL, at_least: int = MIN_A_CALL) -> Iterator[Steps]:
        """For one call; what it has taken is counted at its end."""
        given = Steps(min(at_most, max(at_least, int(self._left))))
        try:
            yield given
        finally:
            self._left = max(0.0, self._left - given.taken)
