"""Allocations, from events in any order."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from scheduler.core.fleet import Fleet
from scheduler.decisions.state import State
from scheduler.kubernetes import translate
from tests.scheduler.decisions.state_scene import (
    holding,
    observe_device,
    observe_lease,
    observe_node,
    texts,
)
from tests.scheduler.objects import device, gpu, lease, node, pod

Event = Callable[[State], None]
COLUMNS = ("total_bytes", "used_bytes", "used_core", "uncapped_shares", "usable", "free_bytes")
NODES = ("n1", "n2", "n3")


def histories(chance: random.Random) -> Sequence[Sequence[Event]]:
    """Return the events of each object of one cluster, in order."""
    all_of: list[Sequence[Event]] = []
    for name in NODES:
        seen: list[Event] = [
            partial(observe_node, raw=node(name, f"{name}-{turn}")) for turn in (0, 1)
        ]
        if chance.random() < 0.3:
            seen.append(partial(State.remove_node, name=name))
        inventories = [
            device(name, *(gpu(f"{name}-{n}", (n + turn) % 3, "4Gi") for n in range(2 + turn)))
            for turn in (0, 1)
        ]
        all_of += [
            seen,
            [partial(observe_device, raw=raw) for raw in inventories],
            [partial(observe_lease, raw=lease(name))],
        ]
    for number in range(12):
        uid, name = f"u{number}", chance.choice(NODES)
        uuid = chance.choice((f"{name}-{chance.randint(0, 2)}", None))
        held: dict[str, Any] = {"memory": f"{chance.randint(1, 5)}Gi"}
        if chance.random() < 0.5:
            held["core"] = chance.randint(1, 100)
        views = [translate.pod(pod(uid=uid)), holding(uid, uuid, 1, name, **held)]
        own: list[Event] = [partial(State.observe_pod, facts=facts) for facts in views]
        if chance.random() < 0.3:
            own.append(partial(State.remove_pod, uid=uid))
        all_of.append(own)
    return all_of


def merged(chance: random.Random, all_of: Sequence[Sequence[Event]]) -> Sequence[Event]:
    left = [list(each) for each in all_of]
    order: list[Event] = []
    while left:
        order.append(chance.choice(left).pop(0))
        left = [each for each in left if each]
    return order


def columns(fleet: Fleet) -> dict[str, Any]:
    rows = {name: fleet.row_of(name) for name in NODES}
    return {
        name: (
            int(fleet.blocked_by[row]),
            [gpu.uuid for gpu in fleet.gpus[row]],
            *(getattr(fleet, column)[row][:4].tolist() for column in COLUMNS),
        )
        for name, row in rows.items()
        if row
    }


@pytest.mark.parametrize("seed", range(200))
def test_the_order_of_events_does_not_matter(seed: int) -> None:
    """The result is equal with the events of each object in order and the objects interleaved at
    random."""
    chance = random.Random(seed)
    all_of = histories(chance)
    first, second = State(), State()
    for event in merged(chance, all_of):
        event(first)
    for event in merged(chance, all_of):
        event(second)
        event(second)
    assert columns(first.fleet) == columns(second.fleet)
    assert texts(first) == texts(second)
