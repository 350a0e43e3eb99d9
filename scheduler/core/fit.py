"""Feasibility: which nodes fit a request, in one pass over the columns.

For one requesting container the columns decide. For several they rule nodes out, and a greedy pass
(`scheduler.core.together`) decides the rest. The reason for refusing nodes is one text per reason:
kube-scheduler counts equal texts and cuts long messages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.ma  # np.unique imports it when first called, which would block for 50 ms

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
    """feasible bool[R], reason uint8[R]: whether `place` finds GPUs on each node, else why not
    (FITS where it does)."""
    possible = feasible(fleet, request, rows)
    reason = np.zeros(len(rows), np.uint8)
    refused = np.flatnonzero(~possible)
    if len(refused):
        reason[refused] = _against(fleet, request, rows[refused])
        reason[~possible & (reason == Reason.FITS)] = Reason.TOGETHER
    return possible, reason


def feasible(fleet: Fleet, request: Request, rows: Rows) -> Bools:
    """bool[R]: the first result of `fit`, at less cost."""
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
    """How many nodes may be examined at once, so that the event loop is not blocked for long."""
    return MAX_CELLS // len(request.containers)


def _against(fleet: Fleet, request: Request, rows: Rows) -> Reasons:
    """uint8[R]: the first reason against each of these nodes; FITS if only the pod's containers
    together do not fit."""
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
    """Return the text of each reason that occurs. rows, reasons: [R], input and output of `fit`."""
    text_by_reason = {}
    for value in np.unique(reasons):
        reason = Reason(int(value))
        near = ""
        if len(request.containers) == 1 and reason in (Reason.MEMORY, Reason.CORE):
            near = _near(fleet, request, rows[reasons == value], reason)
        text_by_reason[reason] = reason.text + (f" ({near})" if near else "")
    return text_by_reason


def why_not(fleet: Fleet, request: Request, row: int) -> str:
    """The text for one node that does not fit."""
    rows = np.array([row], np.intp)
    _, reasons = fit(fleet, request, rows)
    (text,) = texts(fleet, request, rows, reasons).values()
    return text


def _near(fleet: Fleet, request: Request, rows: Rows, reason: Reason) -> str:
    """The largest free amount and the requested one, in one unit; "" where nodes differ. Rounded
    down and up, so that free capacity never appears equal to the request."""
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
        # The largest ratio whose bytes, rounded down, are free.
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
