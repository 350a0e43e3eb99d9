"""Feasibility: which nodes fit a request, in one pass over the columns.

For one requesting container the columns decide. For several they rule nodes out, a greedy pass
rules nodes in, and `place` decides the rest. Pass and search are bounded by steps. Results per node
are cached until the node changes (`FitCache`), so the next call continues where this one stopped. A
node that was not reached is UNFINISHED.

The reason for refusing a node is one text per reason: kube-scheduler counts equal texts and cuts
long messages. The text includes the missing amount where it is the same on all nodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.ma  # np.unique imports it when first called, which would block for 50 ms
from numpy.typing import NDArray

from scheduler.core.columns import Columns, Reasons
from scheduler.core.fleet import Bools, Fleet, Rows
from scheduler.core.place import place
from scheduler.core.reasons import Reason
from scheduler.core.request import WHOLE_PERCENT, Request, Shape
from scheduler.core.search import MOST_STEPS, Steps
from scheduler.core.together import together

MAX_STEPS: Final = 40 * MOST_STEPS
"""For callers without a bound, such as `simulate`; the greedy pass takes no steps there."""
CELLS_PER_STEP: Final = 40
"""Containers times nodes that the greedy pass processes in the time of one search step."""
_MOMENTS_PER_STEP: Final = 8
"""A step takes longer if it must check more than this number of moments of the pod's life."""
_NODES_PER_STEP: Final = 6
"""Nodes compared with already searched nodes in the time of one step."""
MAX_SEARCH_KEYS: Final = 64
MAX_KNOWN: Final = 512
"""Requests with cached results: 9 bytes per node and request."""
_GIB: Final = 2**30
_MIB: Final = 2**20
_TENTHS: Final = 10
_SEARCH_DUE: Final = 255
"""Placeholder for a Reason: the greedy pass found nothing, and `place` was not called yet."""


@dataclass(slots=True)
class _Found:
    """By row: the Reason, and the node's version when it was determined."""

    reasons: NDArray[np.uint8]
    versions: NDArray[np.int64]
    by_search_key: dict[bytes, int] = field(default_factory=dict)
    """Results of searched nodes."""


class FitCache:
    """Cached results for requests of several containers on the nodes of one fleet."""

    def __init__(self) -> None:
        self._found: dict[Shape, _Found] = {}

    def of(self, fleet: Fleet, request: Request) -> _Found:
        found = self._found.pop(request.shape, None)
        if found is None:
            found = _Found(np.zeros(0, np.uint8), np.zeros(0, np.int64))
        if more := len(fleet.version) - len(found.versions):
            found.reasons = np.concatenate([found.reasons, np.zeros(more, np.uint8)])
            found.versions = np.concatenate([found.versions, np.full(more, -1, np.int64)])
        self._found[request.shape] = found
        if len(self._found) > MAX_KNOWN:
            del self._found[next(iter(self._found))]
        return found


def fit(
    fleet: Fleet,
    request: Request,
    rows: Rows,
    steps: Steps | None = None,
    known: FitCache | None = None,
) -> tuple[Bools, Reasons]:
    """feasible bool[R], reason uint8[R]: whether `place` finds GPUs on each node, else why not
    (FITS where it does). steps: budget of pass and searches, and steps taken. known: cache of this
    fleet."""
    possible, reason = examine(fleet, request, rows, steps, known)
    unexplained = np.flatnonzero(~possible & (reason == Reason.FITS))
    if len(unexplained):
        reason[unexplained] = _against(fleet, request, rows[unexplained])
    return possible, reason


def feasible(
    fleet: Fleet,
    request: Request,
    rows: Rows,
    steps: Steps | None = None,
    known: FitCache | None = None,
) -> Bools:
    """bool[R]: the first result of `fit`, at less cost."""
    return examine(fleet, request, rows, steps, known)[0]


def examine(
    fleet: Fleet, request: Request, rows: Rows, steps: Steps | None, known: FitCache | None
) -> tuple[Bools, Reasons]:
    """As `fit`, at less cost: has reasons only for nodes that the columns do not rule out."""
    columns = Columns(fleet, request, rows)
    possible = columns.nodes()
    for container in request.containers:
        possible &= columns.enough(columns.fitting(container), container.gpus)
    if columns.whole:
        possible = possible[rows]
    reason = np.zeros(len(rows), np.uint8)
    if len(request.containers) > 1:
        left = np.flatnonzero(possible)
        found = (known or FitCache()).of(fleet, request)
        reason[left] = _several(fleet, request, rows[left], steps, found)
        possible &= reason == Reason.FITS
    return possible, reason


def _several(
    fleet: Fleet, request: Request, rows: Rows, steps: Steps | None, found: _Found
) -> Reasons:
    """uint8[R], also stored in the cache."""
    new = rows[found.versions[rows] != fleet.version[rows]]
    passed = new
    if steps is None:
        steps = Steps(MAX_STEPS)
    else:
        cells = (steps.most - steps.taken) * CELLS_PER_STEP
        passed = new[: max(0, cells // len(request.containers))]
        steps.taken += len(passed) * len(request.containers) // CELLS_PER_STEP
        if len(passed) < len(new):
            steps.taken = max(steps.taken, steps.most)
    if len(passed):
        at_once = together(fleet, request, passed)
        found.reasons[passed] = np.where(at_once, Reason.FITS, _SEARCH_DUE)
        found.versions[passed] = fleet.version[passed]
    is_known = found.versions[rows] == fleet.version[rows]
    _search(fleet, request, rows[is_known & (found.reasons[rows] == _SEARCH_DUE)], steps, found)
    is_known &= found.reasons[rows] != _SEARCH_DUE
    return np.where(is_known, found.reasons[rows], np.uint8(Reason.UNFINISHED))


def _search(fleet: Fleet, request: Request, rows: Rows, steps: Steps, found: _Found) -> None:
    """Stores the results of `place`, which runs once for nodes with equal search keys."""
    results = found.by_search_key
    selected = None
    if request.selector:
        selected = fleet.selected(request.selector, lambda name: getattr(fleet, name)[rows])
    weight = 1 + request.moment_count // _MOMENTS_PER_STEP
    enough = MOST_STEPS // weight
    for number, row in enumerate(rows.tolist()):
        if steps.taken >= steps.most:
            return
        steps.taken += number % _NODES_PER_STEP == 0
        search_key = fleet.search_key(row, None if selected is None else selected[number])
        if search_key not in results:
            left = (steps.most - steps.taken) // weight - len(request.containers)
            if left <= 0:
                return
            here = Steps(min(left, enough))
            placed = place(fleet, request, row, steps=here)
            steps.taken += weight * (len(request.containers) + here.taken)
            if placed is Reason.GIVEN_UP and here.most < enough:
                return  # out of steps for now, not for good
            if len(results) == MAX_SEARCH_KEYS:
                del results[next(iter(results))]
            results[search_key] = placed if isinstance(placed, Reason) else Reason.FITS
        found.reasons[row] = results[search_key]


def _against(fleet: Fleet, request: Request, rows: Rows) -> Reasons:
    """uint8[R]: the first reason against each of these nodes, all of which the columns rule out."""
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
    """By each reason that occurs, its text. rows, reasons: [R], input and output of `fit`."""
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
