"""Worked examples: queues, the cluster's GPUs, and how many pods of one GPU run in each leaf.

In the examples of SCALED, KAI's own shares add up to more than the cluster, and which pods run
depends on the order of KAI's scheduler. There the quotas are scaled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.queues.kai import UNLIMITED, Q


@dataclass(frozen=True)
class Example:
    """phases: the demands that follow one another; by default the queues' demands at once. runs:
    the pods that run at the end. guaranteed: the translation's guarantee of each queue with a
    quota, in thousandths of a GPU."""

    title: str
    gpus: int
    queues: Sequence[Q]
    runs: Mapping[str, int]
    guaranteed: Mapping[str, int]
    phases: Sequence[Mapping[str, int]] = ()

    @property
    def demands(self) -> Sequence[Mapping[str, int]]:
        return self.phases or [{queue.name: queue.demand for queue in self.queues if queue.demand}]


EXAMPLES: Final = (
    Example(
        "weights 5:3:2",
        10,
        [Q("a", weight=5, demand=10), Q("b", weight=3, demand=10), Q("c", weight=2, demand=10)],
        {"a": 5, "b": 3, "c": 2},
        {},
    ),
    Example(
        "quotas of 2 and 4, surplus 1:1",
        10,
        [Q("a", 2, demand=10), Q("b", 4, demand=10)],
        {"a": 4, "b": 6},
        {"a": 2000, "b": 4000},
    ),
    Example(
        "a quota is no reservation",
        10,
        [Q("a", 6, demand=2), Q("b", demand=10)],
        {"a": 2, "b": 8},
        {"a": 6000},
    ),
    Example(
        "the owner of a quota wakes",
        10,
        [Q("a", 6, demand=6), Q("b", demand=10)],
        {"a": 6, "b": 4},
        {"a": 6000},
        [{"b": 10}, {"a": 6, "b": 10}],
    ),
    Example(
        "a limit of 3", 10, [Q("a", limit=3, demand=10), Q("b", demand=10)], {"a": 3, "b": 7}, {}
    ),
    Example(
        "weight 0",
        10,
        [Q("a", 2, weight=0, demand=10), Q("b", 2, demand=10)],
        {"a": 2, "b": 8},
        {"a": 2000, "b": 2000},
    ),
    Example(
        "priority 200 over 100",
        10,
        [Q("a", priority=200, demand=7), Q("b", demand=10)],
        {"a": 7, "b": 3},
        {},
    ),
    Example(
        "priority 200 over 100, the lower one ran first",
        10,
        [Q("a", priority=200, demand=7), Q("b", demand=10)],
        {"a": 7, "b": 3},
        {},
        [{"b": 10}, {"a": 7, "b": 10}],
    ),
    Example(
        "quotas of 8 and 8, of 10",
        10,
        [Q("a", 8, demand=10), Q("b", 8, demand=10)],
        {"a": 5, "b": 5},
        {"a": 5000, "b": 5000},
    ),
    Example(
        "two levels, quotas of 6 and 4",
        10,
        [
            *(Q("p", 6), Q("a", parent="p", demand=10), Q("b", parent="p")),
            *(Q("r", 4), Q("c", parent="r", demand=10)),
        ],
        {"a": 6, "b": 0, "c": 4},
        {"p": 6000, "r": 4000},
    ),
    Example(
        "an inner queue's limit of 4",
        12,
        [
            *(Q("p", limit=4), Q("a", parent="p", demand=10), Q("b", parent="p", demand=10)),
            *(Q("r"), Q("c", parent="r", demand=10)),
        ],
        {"a": 2, "b": 2, "c": 8},
        {},
    ),
    Example(
        "an inner queue's limit of 4 and quota of 2",
        12,
        [
            *(Q("p", 2, 4), Q("a", parent="p", demand=10), Q("b", parent="p", demand=10)),
            *(Q("r", 2), Q("c", parent="r", demand=10)),
        ],
        {"a": 2, "b": 2, "c": 8},
        {"p": 2000, "r": 2000},
    ),
    Example(
        "children's quotas of 4 and 4 below a quota of 4",
        10,
        [
            *(Q("p", 4), Q("a", 4, parent="p", demand=10), Q("b", 4, parent="p", demand=10)),
            *(Q("r"), Q("c", parent="r", demand=10)),
        ],
        {"a": 4, "b": 3, "c": 3},
        {"p": 4000, "a": 2000, "b": 2000},
    ),
    Example(
        "no limit is a limit of 0",
        10,
        [Q("a", limit=0, demand=5), Q("b", demand=10)],
        {"a": 0, "b": 10},
        {},
    ),
    Example(
        "1:1, one ran alone first",
        10,
        [Q("a", demand=10), Q("b", demand=10)],
        {"a": 5, "b": 5},
        {},
        [{"a": 10}, {"a": 10, "b": 10}],
    ),
    Example(
        "weights on two levels",
        12,
        [
            *(Q("p", weight=2), Q("a", parent="p", demand=12)),
            *(Q("b", weight=3, parent="p", demand=12), Q("r"), Q("c", parent="r", demand=12)),
        ],
        {"a": 2, "b": 6, "c": 4},
        {},
    ),
    Example(
        "10 by 1:1:1",
        10,
        [Q("a", demand=10), Q("b", demand=10), Q("c", demand=10)],
        {"a": 4, "b": 3, "c": 3},
        {},
    ),
    Example(
        "quotas and weights 5:3:2, the first wakes last",
        20,
        [
            Q("a", 5, weight=5, demand=20),
            *(Q("b", 3, weight=3, demand=20), Q("c", 2, weight=2, demand=20)),
        ],
        {"a": 10, "b": 6, "c": 4},
        {"a": 5000, "b": 3000, "c": 2000},
        [{"b": 20, "c": 20}, {"a": 20, "b": 20, "c": 20}],
    ),
    Example(
        "quota -1 beside a quota of 4",
        10,
        [Q("a", UNLIMITED, demand=10), Q("b", 4, demand=10)],
        {"a": 7, "b": 3},
        {"a": 7142, "b": 2857},
    ),
    Example(
        "quota -1 twice",
        10,
        [Q("a", UNLIMITED, demand=10), Q("b", UNLIMITED, demand=10)],
        {"a": 5, "b": 5},
        {"a": 5000, "b": 5000},
    ),
    Example(
        "an inner queue's priority 200 over 100",
        10,
        [
            *(Q("p", priority=200), Q("a", parent="p", demand=7)),
            *(Q("r"), Q("c", parent="r", demand=10)),
        ],
        {"a": 7, "c": 3},
        {},
    ),
    Example(
        "the seed's queues",
        4,
        [Q("default", UNLIMITED), Q("test", UNLIMITED, parent="default", demand=6)],
        {"test": 4},
        {"default": 4000, "test": 4000},
    ),
)
SCALED: Final = frozenset(
    {
        "quotas of 8 and 8, of 10",
        "children's quotas of 4 and 4 below a quota of 4",
        "quota -1 beside a quota of 4",
        "quota -1 twice",
    }
)
