"""Why nodes do not do, for people: a text for each reason.

kube-scheduler counts equal texts, and cuts off the rest of a message that is long; so how near it
was is told only where it is the same on all nodes of the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from scheduler.core.columns import Columns, Reasons
from scheduler.core.fit import fit
from scheduler.core.fleet import Fleet, Rows
from scheduler.core.reasons import TEXTS, Reason
from scheduler.core.request import Ask, Request

_GIB: Final = 2**30
_MIB: Final = 2**20


def texts(fleet: Fleet, request: Request, rows: Rows, reasons: Reasons) -> Mapping[Reason, str]:
    """By each reason that occurs, its text. rows, reasons: [R], as `fit` was asked and answered."""
    said = {}
    for value in np.unique(reasons):
        reason = Reason(int(value))
        near = ""
        if len(request.asks) == 1 and reason in (Reason.MEMORY, Reason.CORE):
            near = _near(fleet, request, rows[reasons == value], reason)
        said[reason] = TEXTS[reason] + (f" ({near})" if near else "")
    return said


def why_not(fleet: Fleet, request: Request, row: int) -> str:
    """Of one node on which there is no room."""
    rows = np.array([row], np.intp)
    _, reasons = fit(fleet, request, rows)
    (text,) = texts(fleet, request, rows, reasons).values()
    return text


def _near(fleet: Fleet, request: Request, rows: Rows, reason: Reason) -> str:
    (ask,) = request.asks
    column, asked = _asked(ask, reason)
    if not asked:
        return ""
    columns = Columns(fleet, request, rows, gather=True)
    free = np.maximum.reduce(np.where(columns.selected(), columns.card(column), 0), axis=0)
    if free.min() != free.max():
        return ""
    # Rounded down and up, so that what is free never looks like what is asked.
    left, wanted = int(free[0]), asked
    if column == "free_bytes":
        return f"largest free slice {_size(left)} of the {_size(wanted, 1)} asked"
    # No percent sign: kube-scheduler writes its Event with our text as Go's format.
    return f"largest free slice {left} of the {wanted} percent asked"


def _asked(ask: Ask, reason: Reason) -> tuple[str, int]:
    """The column of what is left, and what is asked of it; 0 for nothing."""
    if reason is Reason.CORE:
        return "free_core", ask.core_percent or 0
    if ask.memory_percent is not None:
        return "free_percent", ask.memory_percent
    return "free_bytes", ask.memory_bytes or 0


def _size(size_bytes: int, up: int = 0) -> str:
    unit, name = (_GIB, "GiB") if size_bytes >= _GIB else (_MIB, "MiB")
    tenths = (size_bytes * 10 + up * (unit - 1)) // unit
    return f"{tenths / 10:g} {name}"
