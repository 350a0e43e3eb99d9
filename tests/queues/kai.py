"""KAI's rule of fair shares, implemented again as the oracle, and Queues for examples of it.

Source: KAI-Scheduler pkg/scheduler/plugins/proportion/resource_division. Differences: usage over
time is 0, and the last remainders respect request and limit. The unit is one GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

UNLIMITED = -1


@dataclass(frozen=True)
class Q:
    """A queue with the demand of its pods of one GPU. absent: fields that its object lacks."""

    name: str
    quota: float = 0
    limit: float = UNLIMITED
    weight: float = 1
    priority: int = 100
    demand: int = 0
    parent: str = ""

    def raw(self, **more: Any) -> dict[str, Any]:
        """Return the Queue object."""
        every = {"quota": UNLIMITED, "limit": UNLIMITED, "overQuotaWeight": 1}
        gpu = {"quota": self.quota, "limit": self.limit, "overQuotaWeight": self.weight}
        spec = {
            "parentQueue": self.parent,
            "priority": self.priority,
            "resources": {"gpu": gpu, "cpu": every, "memory": every},
            **more,
        }
        return {
            "apiVersion": "scheduling.run.ai/v2",
            "kind": "Queue",
            "metadata": {"name": self.name},
            "spec": spec,
        }


def leaves(queues: Sequence[Q]) -> Sequence[Q]:
    inner = {queue.parent for queue in queues}
    return [queue for queue in queues if queue.name not in inner]


def fair_shares(
    total: int, queues: Sequence[Q], demand: Mapping[str, int], unit: int = 1
) -> dict[str, float]:
    """Return KAI's fair share of each queue. unit: 1 divides whole GPUs, 0 does not round."""
    below: dict[str, list[Q]] = {}
    for queue in queues:
        below.setdefault(queue.parent, []).append(queue)

    def request(queue: Q) -> float:
        if queue.name in below:
            return sum(map(request, below[queue.name]))
        return demand.get(queue.name, 0)

    shares: dict[str, float] = {}

    def down(parent: str, amount: float) -> None:
        siblings = below.get(parent, [])
        shares.update(_divide(amount, siblings, {q.name: request(q) for q in siblings}, unit))
        for queue in siblings:
            down(queue.name, shares[queue.name])

    down("", total)
    return shares


def _divide(
    total: float, queues: Sequence[Q], asked: Mapping[str, float], unit: int
) -> dict[str, float]:
    """Divide the total among siblings."""
    want = {q.name: min(asked[q.name], math.inf if q.limit < 0 else q.limit) for q in queues}
    fair = {q.name: min(total if q.quota < 0 else q.quota, want[q.name]) for q in queues}
    left = max(0.0, total - sum(fair.values()))
    for priority in sorted({q.priority for q in queues}, reverse=True):
        group = [q for q in queues if q.priority == priority]
        left, rests = _by_weight(left, group, want, fair, unit)
        for name in sorted(rests, key=lambda each: -rests[each]):
            given = max(0.0, min(1.0, left, want[name] - fair[name]))
            fair[name] += given
            left -= given
    return fair


def _by_weight(
    left: float, group: Iterable[Q], want: Mapping[str, float], fair: dict[str, float], unit: int
) -> tuple[float, dict[str, float]]:
    """Add whole GPUs by weight to `fair`. Return what is left, and each queue's lost fraction."""
    while True:
        hungry = [q for q in group if want[q.name] > fair[q.name] and q.weight > 0]
        weights, amount = sum(q.weight for q in hungry), left
        rests: dict[str, float] = {}
        if not hungry or amount <= 1e-9:
            return left, rests
        is_again = False
        for queue in hungry:
            part, need = amount * queue.weight / weights, want[queue.name] - fair[queue.name]
            if need <= part:
                given, is_again = need, is_again or need < part
            else:
                given = math.floor(part + 1e-9) if unit else part
                rests[queue.name] = part - given
            fair[queue.name] += given
            left -= given
        if not is_again:
            return left, rests
