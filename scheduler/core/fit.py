"""Which nodes have room: one pass over the columns.

For one asking container the columns decide. For several they rule nodes out, a greedy pass rules
nodes in, and `place` decides for those that are left.
"""

from __future__ import annotations

import numpy as np

from scheduler.core.columns import Columns, Reasons
from scheduler.core.fleet import Bools, Fleet, Rows
from scheduler.core.place import place
from scheduler.core.reasons import Reason
from scheduler.core.request import Request
from scheduler.core.together import together


def fit(fleet: Fleet, request: Request, rows: Rows) -> tuple[Bools, Reasons]:
    """feasible bool[R], reason uint8[R]: whether `place` finds cards on each node, and else why
    not (FITS where it does)."""
    possible = feasible(fleet, request, rows)
    reason = np.zeros(len(rows), np.uint8)
    out = np.flatnonzero(~possible)
    if len(out):
        reason[out] = why_not(fleet, request, rows[out])
    return possible, reason


def feasible(fleet: Fleet, request: Request, rows: Rows) -> Bools:
    """bool[R]: the first half of `fit`, for less."""
    columns = Columns(fleet, request, rows)
    possible = columns.nodes()
    for ask in request.asks:
        possible &= columns.enough(columns.room(ask), ask.cards)
    if columns.whole:
        possible = possible[rows]
    if len(request.asks) > 1:
        hopeful = np.flatnonzero(possible)
        unsure = hopeful[~together(Columns(fleet, request, rows[hopeful], gather=True))]
        possible[unsure] = _placed(fleet, request, rows[unsure]) == Reason.FITS
    return possible


def why_not(fleet: Fleet, request: Request, rows: Rows) -> Reasons:
    """uint8[R]: the first reason against each of these nodes, none of which fits."""
    columns = Columns(fleet, request, rows, gather=True)
    reason = np.zeros(len(rows), np.uint8)
    for ask in request.asks:
        reason = np.where(reason == Reason.FITS, columns.reasons(ask), reason)
    unsaid = np.flatnonzero((reason == Reason.FITS) & columns.nodes())
    reason[unsaid] = _placed(fleet, request, rows[unsaid])
    if request.isolation:
        reason[~columns.isolates] = Reason.NOT_ISOLATING
    return np.where(columns.bar > 0, columns.bar, reason)


def _placed(fleet: Fleet, request: Request, rows: Rows) -> Reasons:
    """What `place` says, asked once for nodes whose cards are alike."""
    known: dict[bytes, int] = {}
    selected = fleet.selected(request.selector) if request.selector else None
    reason = np.zeros(len(rows), np.uint8)
    for index, row in enumerate(rows):
        alike = fleet.likeness(int(row), selected)
        if alike not in known:
            found = place(fleet, request, int(row))
            known[alike] = found if isinstance(found, Reason) else Reason.FITS
        reason[index] = known[alike]
    return reason
