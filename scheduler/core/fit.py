"""Which nodes have room: one pass over the columns.

For one asking container the columns decide. For several they rule out, and `place` decides for the
nodes that are left.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scheduler.core.fleet import Bools, Fleet, Rows
from scheduler.core.place import place
from scheduler.core.reasons import Reason
from scheduler.core.request import Request

Reasons = NDArray[np.uint8]
"""Values of Reason, [R]."""


def fit(fleet: Fleet, request: Request, rows: Rows) -> tuple[Bools, Reasons]:
    """feasible bool[R], reason uint8[R]: whether `place` finds cards on each node, and else why
    not (FITS where it does)."""
    found = [place(fleet, request, int(row)) for row in rows]
    reason = np.array([r if isinstance(r, Reason) else Reason.FITS for r in found], np.uint8)
    return reason == Reason.FITS, reason


def feasible(fleet: Fleet, request: Request, rows: Rows) -> Bools:
    """bool[R]: the first half of `fit`, for less."""
    return fit(fleet, request, rows)[0]
