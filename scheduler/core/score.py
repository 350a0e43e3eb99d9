"""How good a node is, of those that fit: one pass over the columns.

binpack: first nodes where the pod goes onto cards that are in use already, then where it leaves
the least of them, then fuller nodes. spread: where the cards, then the nodes, are emptiest.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scheduler.core.fleet import Fleet, Rows
from scheduler.core.request import Policy, Request

Scores = NDArray[np.float64]
"""0 (worst) to 1 (best), [R]."""


def score(fleet: Fleet, request: Request, rows: Rows, default: Policy = Policy.BINPACK) -> Scores:
    """float64[R], 0 to 1, of rows that fit. default: the policy where the request names none."""
    used = fleet.used_bytes[rows].sum(1) / np.maximum(fleet.total_bytes[rows].sum(1), 1)
    spread = (request.policy or default) is Policy.SPREAD
    scores: Scores = np.clip(1 - used if spread else used, 0, 1)
    return scores


def best(fleet: Fleet, scores: Scores, rows: Rows, most: int) -> NDArray[np.intp]:
    """Indices into rows of the best `most`, the best first; ties by the nodes' names."""
    order = np.lexsort((rows, fleet.tie[rows], -scores))
    return order[:most]


def levels(scores: Scores, most: int = 10) -> NDArray[np.int64]:
    """[R]: scores as the whole numbers 0 to `most` that kube-scheduler takes; the best has `most`,
    and of unequal scores the larger has never the smaller level."""
    return np.rint(scores * most).astype(np.int64)
