"""Scores feasible nodes, in one pass over the columns. Shapes: see columns.py.

A container's score depends on the GPUs that `place` would choose for it alone. To keep whole GPUs
and nodes free, `binpack` prefers a node where these GPUs are in use, then where they become
fullest, then the fuller node. `spread` prefers the opposite. `first` ranks nodes like `binpack`. If
a container has several GPUs, its score is higher the nearer these are to each other. A pod's score
is the mean of its containers' scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scheduler.core.columns import Columns, largest_group
from scheduler.core.fleet import FULL, IN_USE, Bools, Fleet, Rows
from scheduler.core.request import WHOLE_PERCENT, ContainerRequest, Policy, Request

Scores = NDArray[np.float64]
"""The score of each node, 0 (worst) to 1 (best), [R]."""

_NODE: Final = 0.1
"""The weight of the node's fullness. With IN_USE and FULL, the weights add up to 1."""
_NEAR: Final = {"link": 1.0, "root": 0.75, "numa": 0.5}
_NEARNESS: Final = 0.5
"""The weight of nearness in the score of a container with several GPUs."""


def score(fleet: Fleet, request: Request, rows: Rows, default: Policy = Policy.BINPACK) -> Scores:
    """Return the scores of feasible nodes, [R]. default: the policy if the request has none."""
    policy = request.policy or default
    columns = Columns(fleet, request, rows)
    full = columns.gpu("fullness")
    node = np.add.reduce(full, axis=0) * (_NODE / len(full))
    scores = np.zeros(full.shape[1])
    for container in request.containers:
        fitting = columns.fitting(container)
        if policy is Policy.FIRST:
            _keep_first(fitting, container.gpus)
        growth = _growth(fleet, container, columns)
        if policy is Policy.SPREAD:
            free = (IN_USE + FULL) * (1 - full - growth)
            one = _best_of(free, fitting, container.gpus) + (_NODE - node)
        else:
            packed = columns.gpu("packing") + FULL * growth
            one = _best_of(packed, fitting, container.gpus) + node
        if container.gpus > 1:
            one = (1 - _NEARNESS) * one + _NEARNESS * _nearness(columns, fitting, container.gpus)
        scores += one
    scores /= len(request.containers)
    return scores[rows] if columns.whole else scores


def best(fleet: Fleet, scores: Scores, rows: Rows, most: int) -> NDArray[np.intp]:
    """Return the indices in `rows` of the best `most` nodes. A hash of the name breaks ties."""
    order: NDArray[np.intp] = np.lexsort((fleet.tie[rows], -scores))
    return order[:most]


def levels(
    values: Scores | Sequence[float], most: int = 10, one_best: bool = True
) -> NDArray[np.int64]:
    """Convert scores to the integers 0 to `most` that kube-scheduler accepts, [R].

    Only the first node of the best score gets `most`, or all of that score without one_best. The
    worst gets 0, unless all are equal. A higher score never gets a lower integer.
    """
    scores = np.asarray(values, np.float64)
    low, high = scores.min(initial=1), scores.max(initial=0)
    ranks = np.full(len(scores), most, np.int64)
    if low < high:
        ranks = np.rint((scores - low) / (high - low) * most).astype(np.int64)
    is_best = scores == high
    if one_best:
        is_best[np.flatnonzero(is_best)[1:]] = False
    ranks[(ranks == most) & ~is_best] = most - 1
    return ranks


def _keep_first(fitting: Bools, wanted: int) -> None:
    """Keep only the first `wanted` fitting GPUs of each node. fitting: [G, R].

    NumPy's `accumulate` along the first axis would be slow: it makes a call for each node."""
    left = np.full(fitting.shape[1], wanted, np.uint8)
    for gpu in fitting:
        gpu &= left > 0
        left -= gpu.view(np.uint8)


def _growth(
    fleet: Fleet, container: ContainerRequest, columns: Columns
) -> NDArray[np.float64] | float:
    """Return the fraction of each GPU that the container fills, [G, R], or one number for all."""
    core = (container.core_percent or 0) / WHOLE_PERCENT
    if container.memory_ratio is not None:
        return (float(container.memory_ratio) + core) / 2
    assert container.memory_bytes is not None
    size = fleet.sizes.only()
    if size is not None:
        return (container.memory_bytes / size + core) / 2
    growth: NDArray[np.float64] = container.memory_bytes / np.maximum(columns.gpu("total_bytes"), 1)
    growth += core
    growth /= 2
    return growth


def _best_of(gpus: NDArray[np.float64], fitting: Bools, wanted: int) -> Scores:
    """[R]: the mean score of the best `wanted` fitting GPUs. gpus: their scores, [G, R]."""
    of_fitting = np.where(fitting, gpus, -1.0)
    if wanted == 1:
        most: Scores = np.maximum.reduce(of_fitting, axis=0)
        return most
    few = len(gpus) - wanted
    mean: Scores = np.partition(of_fitting, few, axis=0)[few:].mean(0)
    return mean


def _nearness(columns: Columns, fitting: Bools, wanted: int) -> Scores:
    """[R], 0 to 1: how near to each other `wanted` fitting GPUs can be. fitting: [G, R]."""
    near = np.zeros(fitting.shape[1])
    for column, value in _NEAR.items():
        enough = largest_group(fitting, columns.gpu(column)) >= wanted
        np.maximum(near, np.where(enough, value, 0), out=near)
    return near
