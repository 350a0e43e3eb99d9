"""Feasibility: which nodes fit a request, in one pass over the columns. Shapes: see columns.py.

If one container requests GPUs, comparing columns decides. If several do, the columns rule nodes
out, and a greedy pass (`scheduler.core.together`) decides about the rest. All nodes refused for one
reason get the same text, because kube-scheduler counts equal texts and cuts long messages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.ma  # else the first call of np.unique would import it and block for 50 ms

from scheduler.core.columns import Columns, Reasons
from scheduler.core.fleet import Bools, Fleet, Rows
from scheduler.core.reasons import Reason
from scheduler.core.request import WHOLE_PERCENT, Request
from scheduler.core.together import together

MAX_CELLS: Final = 25_600
"""Containers times nodes that the greedy pass processes in some 20 ms."""
_GIB: Final = 2**30
_MIB: Final = 2**20
_TENTHS: Final = 10


def fit(fleet: Fleet, request: Request, rows: Rows) -> tuple[Bools, Reasons]:
    """Return for each node whether `place` finds GPUs, bool[R], and why not, a Reason, uint8[R]."""
    possible = feasible(fleet, request, rows)
    reason = np.zeros(len(rows), np.uint8)
    refused = np.flatnonzero(~possible)
    if len(refused):
        reason[refused] = _against(fleet, request, rows[refused])
        reason[~possible & (reason == Reason.FITS)] = Reason.TOGETHER
    return possible, reason


def feasible(fleet: Fleet, request: Request, rows: Rows) -> Bools:
    """bool[R]: the first result of `fit`, computed without the reasons."""
    columns = Columns(fleet, request, rows)
    possible = columns.nodes()
    for container in request.containers:
        possible &= columns.enough(columns.fitting(container), container.gpus)
    if columns.whole:
        possible = possible[rows]
    if len(request.containers) > 1:
        left = np.flatnonzero(possible)
        possible[left] = together(fleet, request, rows[left])
    return possible


def max_rows(request: Request) -> int:
    """Return how many nodes may be examined at once without blocking the event loop for long."""
    return MAX_CELLS // len(request.containers)


def _against(fleet: Fleet, request: Request, rows: Rows) -> Reasons:
    """uint8[R]: why each node does not fit. FITS means that each container fits if it is the pod's
    only one, and `fit` replaces FITS by TOGETHER."""
    columns = Columns(fleet, request, rows, gather=True)
    reason = np.zeros(len(rows), np.uint8)
    for container in request.containers:
        reason = np.where(reason == Reason.FITS, columns.reasons(container), reason)
    if request.isolation:
        reason[~columns.isolates] = Reason.NOT_ISOLATING
    if request.whole_gpus > 1:
        reason[columns.partitioned & (reason != Reason.NOT_ISOLATING)] = Reason.PARTITIONED
    return np.where(columns.blocked_by > 0, columns.blocked_by, reason)


# --- texts


def texts(fleet: Fleet, request: Request, rows: Rows, reasons: Reasons) -> Mapping[Reason, str]:
    """Return the text of each reason that occurs. rows, reasons: argument and result of `fit`."""
    text_by_reason = {}
    for value in np.unique(reasons):
        reason = Reason(int(value))
        near = ""
        if len(request.containers) == 1 and reason in (Reason.MEMORY, Reason.CORE):
            near = _near(fleet, request, rows[reasons == value], reason)
        text_by_reason[reason] = reason.text + (f" ({near})" if near else "")
    return text_by_reason


def why_not(fleet: Fleet, request: Request, row: int) -> str:
    """Return the reason's text for one node that does not fit."""
    rows = np.array([row], np.intp)
    _, reasons = fit(fleet, request, rows)
    (text,) = texts(fleet, request, rows, reasons).values()
    return text


def _near(fleet: Fleet, request: Request, rows: Rows, reason: Reason) -> str:
    """Return a text with the largest free amount, rounded down, and the requested amount, rounded
    up: so they never appear equal. Return "" if the largest free amount differs by node."""
    (container,) = request.containers
    columns = Columns(fleet, request, rows, gather=True)
    selected = columns.selected()
    free = columns.gpu("free_bytes")
    scale, free_unit, unit = 1, "", " percent"
    # No percent sign: kube-scheduler uses the text as a Go format for its Event.
    if reason is Reason.CORE:
        if container.core_percent is None:
            return ""
        free, wanted = columns.gpu("free_core"), container.core_percent
    elif container.memory_ratio is not None:
        scale = 1 if WHOLE_PERCENT % container.memory_ratio.denominator == 0 else _TENTHS
        wanted = math.ceil(container.memory_ratio * WHOLE_PERCENT * scale)
        # A ratio's bytes are rounded down. Compute the largest ratio whose bytes are free.
        total = np.maximum(columns.gpu("total_bytes"), 1)
        free = (WHOLE_PERCENT * scale * (free + 1) - 1) // total
    else:
        assert container.memory_bytes is not None
        size, unit = (_GIB, " GiB") if free[selected].max() >= _GIB else (_MIB, " MiB")
        scale, free_unit = _TENTHS, unit
        wanted = -(-container.memory_bytes * scale // size)
        free = free * scale // size
    largest = np.maximum.reduce(np.where(selected, free, 0), axis=0)
    if largest.min() != largest.max():
        return ""
    left, requested = (
        f"{amount / scale:.1f}".removesuffix(".0") for amount in (largest[0], wanted)
    )
    return f"largest free slice {left}{free_unit} of the {requested}{unit} requested"
