"""The core by itself: choosing a node and a card, beside the same as a plain loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

from bench.scheduling.fleets import ASKED
from bench.scheduling.plain import choose, nodes_of
from scheduler.core.fit import feasible
from scheduler.core.fleet import Fleet, Rows
from scheduler.core.place import place
from scheduler.core.placement import Placement
from scheduler.core.score import best, score


def fitting(fleet: Fleet, rows: Rows) -> Rows:
    found: Rows = rows[feasible(fleet, ASKED, rows)]
    return found


def by_columns(fleet: Fleet, rows: Rows) -> Placement:
    """The best node and its card for one more pod. There is one."""
    found = fitting(fleet, rows)
    first = found[best(fleet, score(fleet, ASKED, found), found, 1)[0]]
    placed = place(fleet, ASKED, int(first))
    assert isinstance(placed, Placement)
    return placed


def measure(fleet: Fleet, rounds: int) -> tuple[float, float]:
    """Microseconds of processor time per pod: of the columns, of the plain loop. Each the median;
    by turns, so that what else the machine does meets both. Not by the clock: the loop is long
    enough to be interrupted nearly each time, the columns nearly never."""
    rows, nodes = fleet.all_rows(), nodes_of(fleet)
    placed, plain = by_columns(fleet, rows), choose(nodes, ASKED)
    assert plain == (placed.node, placed.shares[0].minor), (placed, plain)
    ours, loops = [], []
    for _ in range(rounds):
        ours += [_timed(lambda: by_columns(fleet, rows)) for _ in range(20)]
        loops.append(_timed(lambda: choose(nodes, ASKED)))
    return median(ours), median(loops)


def _timed(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return (time.process_time() - begun) * 1e6
