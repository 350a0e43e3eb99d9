"""Which nodes have room: one pass over the columns.

For one asking container the columns decide. For several they rule nodes out, a greedy pass rules
nodes in, and `place` decides for those that are left, until all of them together have taken too
long.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from scheduler.core.columns import Columns, Reasons
from scheduler.core.fleet import Bools, Fleet, Rows
from scheduler.core.place import place
from scheduler.core.reasons import Reason
from scheduler.core.request import Request
from scheduler.core.search import MOST_STEPS, Steps
from scheduler.core.together import together

MOST_STEPS_TOGETHER: Final = 5 * MOST_STEPS
"""Of the searches of all nodes."""


def fit(
    fleet: Fleet, request: Request, rows: Rows, steps: Steps | None = None
) -> tuple[Bools, Reasons]:
    """feasible bool[R], reason uint8[R]: whether `place` finds cards on each node, and else why
    not (FITS where it does). steps: what the searches of all nodes may take and have taken."""
    possible, reason = _look(fleet, request, rows, steps or Steps(MOST_STEPS_TOGETHER))
    unsaid = np.flatnonzero(~possible & (reason == Reason.FITS))
    if len(unsaid):
        reason[unsaid] = _against(fleet, request, rows[unsaid])
    return possible, reason


def feasible(fleet: Fleet, request: Request, rows: Rows) -> Bools:
    """bool[R]: the first half of `fit`, for less."""
    return _look(fleet, request, rows, Steps(MOST_STEPS_TOGETHER))[0]


def _look(fleet: Fleet, request: Request, rows: Rows, steps: Steps) -> tuple[Bools, Reasons]:
    """The reasons of those nodes alone to which `place` had to be asked."""
    columns = Columns(fleet, request, rows)
    possible = columns.nodes()
    for ask in request.asks:
        possible &= columns.enough(columns.room(ask), ask.cards)
    if columns.whole:
        possible = possible[rows]
    reason = np.zeros(len(rows), np.uint8)
    if len(request.asks) > 1:
        hopeful = np.flatnonzero(possible)
        unsure = hopeful[~together(fleet, request, rows[hopeful])]
        reason[unsure] = _placed(fleet, request, rows[unsure], steps)
        possible &= reason == Reason.FITS
    return possible, reason


def _against(fleet: Fleet, request: Request, rows: Rows) -> Reasons:
    """uint8[R]: the first reason against each of these nodes, all of which the columns rule out."""
    columns = Columns(fleet, request, rows, gather=True)
    reason = np.zeros(len(rows), np.uint8)
    for ask in request.asks:
        reason = np.where(reason == Reason.FITS, columns.reasons(ask), reason)
    if request.isolation:
        reason[~columns.isolates] = Reason.NOT_ISOLATING
    return np.where(columns.bar > 0, columns.bar, reason)


def _placed(fleet: Fleet, request: Request, rows: Rows, steps: Steps) -> Reasons:
    """What `place` says, asked once for nodes whose cards are alike."""
    known: dict[bytes, int] = {}
    selected = fleet.selected(request.selector) if request.selector else None
    reason = np.zeros(len(rows), np.uint8)
    for index, row in enumerate(rows):
        if steps.taken >= steps.most:
            reason[index:] = Reason.GIVEN_UP
            break
        alike = fleet.likeness(int(row), selected)
        if alike not in known:
            here = Steps(min(steps.most - steps.taken, MOST_STEPS))
            found = place(fleet, request, int(row), steps=here)
            known[alike] = found if isinstance(found, Reason) else Reason.FITS
            steps.taken += here.taken
        reason[index] = known[alike]
    return reason
