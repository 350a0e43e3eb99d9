"""Allocations, from events in any order."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from scheduler.core.fleet import Fleet
from scheduler.core.place import Placement, place
from scheduler.decisions.state import Assumed, State
from scheduler.kubernetes import binding, requests, translate
from tests.scheduler.decisions.state_scene import (
    holding,
    made,
    observe_device,
    observe_lease,
    observe_node,
    texts,
)
from tests.scheduler.objects import container, device, gpu, lease, node, pod

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


@pytest.mark.parametrize("seed", range(100))
def test_no_grant_ever_exceeds_a_gpu(seed: int) -> None:
    """Random fills, binds, failures, deletions, lost and recovered GPUs, removed and recreated
    nodes."""
    chance = random.Random(seed)
    state = made(*(gpu(f"GPU-{n}", n, "8Gi") for n in range(4)))
    observe_node(state, node("n2"))
    observe_device(state, device("n2", *(gpu(f"GPU-x{n}", n, "4Gi") for n in range(2))))
    observe_lease(state, lease("n2"))
    live: dict[str, Placement] = {}
    for step in range(120):
        uid = f"u{step}"
        sizes: dict[str, Any] = {"memory": f"{chance.randint(1, 5000)}Mi"}
        if chance.random() < 0.5:
            sizes = {"ratio": str(chance.randint(1, 100))}
        if chance.random() < 0.7:
            sizes["core"] = str(chance.randint(1, 100))
        mains = [container(f"c{n}", False, **sizes) for n in range(chance.choice((1, 1, 2)))]
        inits = [container("first", chance.random() < 0.5, ratio=10, core=10)]
        raw = pod(*mains, uid=uid, inits=inits if chance.random() < 0.3 else ())
        request = requests.request(raw)
        assert request is not None
        row = state.fleet.row_of(chance.choice(("n1", "n2")))
        found = place(state.fleet, request, row)
        if isinstance(found, Placement):
            state.assume(uid, Assumed(found, {}, 0.0))
            live[uid] = found
            if chance.random() < 0.8:
                raw["spec"]["nodeName"] = found.node
                raw["metadata"]["annotations"] = dict(binding.annotations_of(found))
                before = copy.deepcopy(state.fleet)
                state.observe_pod(translate.pod(raw))
                for column in COLUMNS:
                    now, then = getattr(state.fleet, column), getattr(before, column)
                    assert np.array_equal(now, then), "what is read back is what was assumed"
        action = chance.random()
        if live and action < 0.4:
            gone = chance.choice(sorted(live))
            del live[gone]
            state.remove_pod(gone)
        elif action < 0.5:
            lost = chance.randrange(4)
            kept = [gpu(f"GPU-{n}", n, "8Gi") for n in range(4) if n != lost]
            observe_device(state, device("n1", *kept))
            observe_device(state, device("n1", *(gpu(f"GPU-{n}", n, "8Gi") for n in range(4))))
        elif action < 0.55:
            state.remove_node("n1")
            observe_node(state, node("n1"))
        assert texts(state) == []
        check_sums(state.fleet, live)


def check_sums(fleet: Fleet, live: dict[str, Placement]) -> None:
    for name in ("n1", "n2"):
        row = fleet.row_of(name)
        for slot, there in enumerate(fleet.gpus[row]):
            peaks = [
                peak
                for placement in live.values()
                for peak in placement.peaks
                if peak.uuid == there.uuid
            ]
            size = sum(peak.memory_bytes for peak in peaks)
            core = sum(peak.core_percent or 0 for peak in peaks)
            uncapped_shares = sum(peak.core_percent is None for peak in peaks)
            assert size <= there.total_bytes
            assert core <= (99 if uncapped_shares else 100)
            held = (fleet.used_bytes[row, slot], fleet.used_core[row, slot])
            assert held == (size, core)
            assert fleet.uncapped_shares[row, slot] == uncapped_shares
