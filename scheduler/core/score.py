"""Scores of feasible nodes, in one pass over the columns, [gpu, node].

Each container is scored by the GPUs that `place` would choose for it alone. Binpack prefers nodes
where these are in use, then where they become fullest, then the fuller node, to keep whole GPUs and
whole nodes free; spread is the opposite; first ranks nodes as binpack. Several GPUs of one
container score higher the nearer they are to each other. A pod's score is its containers' mean.
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
"""0 (worst) to 1 (best), [R]."""

_NODE: Final = 0.1
"""The rest of 1 beside IN_USE and FULL: weight of a full node."""
_NEAR: Final = {"link": 1.0, "root": 0.75, "numa": 0.5}
_NEARNESS: Final = 0.5
"""Weight of nearness in the score of several GPUs."""


def score(fleet: Fleet, request: Request, rows: Rows, default: Policy = Policy.BINPACK) -> Scores:
    """float64[R], 0 to 1, for feasible rows. default: the policy if the request has none."""
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
    """Indices into rows of the best `most`, the best first; ties by the nodes' names."""
    order: NDArray[np.intp] = np.lexsort((fleet.tie[rows], -scores))
    return order[:most]


def levels(values: Scores | Sequence[float], most: int = 10) -> NDArray[np.int64]:
    """[R]: scores as the integers 0 to `most` that kube-scheduler accepts.

    Only the best nodes get `most`, because kube-scheduler picks any of those. The worst gets 0
    unless it equals the best. Levels never reverse the order of scores.
    """
    scores = np.asarray(values, np.float64)
    low, high = scores.min(initial=1), scores.max(initial=0)
    if low >= high:
        return np.full(len(scores), most, np.int64)
    ranks: NDArray[np.int64] = np.rint((scores - low) / (high - low) * most).astype(np.int64)
    ranks[(ranks == most) & (scores < high)] = most - 1
    return ranks


def _keep_first(fitting: Bools, wanted: int) -> None:
    """Keep the `wanted` GPUs of lowest index in each column of fitting, [G, R].

    NumPy's accumulate along the first axis makes a call for each column."""
    left = np.full(fitting.shape[1], wanted, np.uint8)
    for gpu in fitting:
        gpu &= left > 0
        left -= gpu.view(np.uint8)


def _growth(
    fleet: Fleet, container: ContainerRequest, columns: Columns
) -> NDArray[np.float64] | float:
    """[G, R], or one number for all: the fraction of a GPU that the container fills."""
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
    """[R]: the mean of the best `wanted` of the GPUs [G, R] in `fitting`."""
    of_fitting = np.where(fitting, gpus, -1.0)
    if wanted == 1:
        most: Scores = np.maximum.reduce(of_fitting, axis=0)
        return most
    few = len(gpus) - wanted
    mean: Scores = np.partition(of_fitting, few, axis=0)[few:].mean(0)
    return mean


def _nearness(columns: Columns, fitting: Bools, wanted: int) -> Scores:
    """[R], 0 to 1: how near to each other `wanted` of the GPUs [G, R] can be."""
    near = np.zeros(fitting.shape[1])
    for column, value in _NEAR.items():
        enough = largest_group(fitting, columns.gpu(column)) >= wanted
        np.maximum(near, np.where(enough, value, 0), out=near)
    return near
