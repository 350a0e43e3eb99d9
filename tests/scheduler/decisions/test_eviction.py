"""Whether victims of a preemption are removed at once or one by one, the same fleet remains."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from scheduler.core import fleet as fleet_module
from scheduler.core.allocations import Allocations
from scheduler.core.fit import feasible
from scheduler.core.fleet import Fleet, Gpu, GpuAmount
from scheduler.core.place import Placement, place
from scheduler.core.reservations import Kind
from scheduler.decisions.eviction import Eviction
from scheduler.decisions.state import State
from scheduler.kubernetes.facts import DeviceFacts, HeldGpu, LeaseFacts, NodeFacts, PodFacts
from tests.scheduler import calls
from tests.scheduler.core import fleets

_LEFT_OUT = {"version", "freed_version", "added"}
"""Columns that only count changes of the fleet. The comparison leaves them out."""
_EXPECTED = ("expected-0", "expected-1", "expected-2")
"""The UIDs of the pods that have reservations."""


def hold(state: State, uid: str, node: str, *shares: tuple[Gpu, int, int | None]) -> None:
    held = tuple(HeldGpu(gpu.uuid, gpu.minor, size, core) for gpu, size, core in shares)
    state.observe_pod(PodFacts(uid, "default", f"pod-{uid}", node, False, held))


def used(chance: random.Random) -> tuple[State, list[str]]:
    """Return a state of random nodes and pods, some overcommitted, and the pods' UIDs."""
    state, uids = State(), list[str]()
    for node in fleets.nodes(chance, most=8):
        gpus = tuple(held.gpu for held in node.gpus)
        state.observe_device(DeviceFacts(node.name, f"uid-{node.name}", gpus))
        state.observe_node(NodeFacts(node.name, f"uid-{node.name}", isolates=node.isolates))
        if not node.blocked_by:
            state.observe_lease(LeaseFacts(node.name, "now"), 0.0)
        shares = [(held.gpu, *share) for held in node.gpus for share in held.shares]
        chance.shuffle(shares)
        while shares:
            several = [shares.pop() for _ in range(min(len(shares), chance.choice((1, 1, 2, 3))))]
            uids.append(f"u{len(uids)}")
            hold(state, uids[-1], node.name, *several)
    for uid in _EXPECTED:
        asked = fleets.request(chance)
        for row in state.fleet.all_rows().tolist():
            found = place(state.fleet, asked, row)
            if isinstance(found, Placement):
                state.reserve(uid, asked, found, Kind.RANKED)
                break
    return state, uids


def victims_of(chance: random.Random, state: State, uids: list[str]) -> Mapping[str, list[str]]:
    """Return victims by node. Some are pods of another node, unknown, or listed twice."""
    victims: dict[str, list[str]] = {}
    for name in (*state.fleet.names[1:], "unknown"):
        there = [uid for uid in uids if state.node_of(uid) == name]
        chosen = chance.sample(there, chance.randint(0, len(there)))
        chosen += chance.choices([*uids, "stranger", _EXPECTED[0]], k=chance.choice((0, 0, 1, 3)))
        victims[name] = chosen + chosen[: chance.choice((0, 0, 1))]
    return victims


def one_by_one(state: State, victims: Mapping[str, Sequence[str]]) -> Fleet:
    """Remove each victim separately from a copy of the state, and return its fleet."""
    copied = copy.deepcopy(state)
    for uid in _EXPECTED:
        copied.reservations.end(uid)
    for uid, node in [(uid, node) for node, uids in victims.items() for uid in uids]:
        if copied.node_of(uid) == node:
            copied.remove_pod(uid)
    return copied.fleet


@pytest.mark.parametrize("seed", range(200))
def test_releasing_all_victims_at_once_is_releasing_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    state, uids = used(chance)
    before, victims = copy.deepcopy(state.fleet), victims_of(chance, state, uids)
    eviction, names = Eviction(state.fleet, state.allocations), list(victims)
    cut = chance.randint(0, len(names))
    for part in (names[:cut], names[cut:]):
        eviction.add({name: victims[name] for name in part})
    at_once, plain = eviction.remaining(), one_by_one(state, victims)
    for column in (*fleet_module._PER_GPU, *fleet_module._PER_NODE):
        now, then = getattr(at_once, column), getattr(plain, column)
        assert now.dtype == then.dtype
        assert column in _LEFT_OUT or np.array_equal(now, then), column
        assert np.array_equal(getattr(state.fleet, column), getattr(before, column)), column
    rows = state.fleet.rows_of(names)
    for _ in range(5):
        asked = fleets.request(chance)
        assert np.array_equal(feasible(at_once, asked, rows), feasible(plain, asked, rows))


def test_the_state_may_change_between_the_parts() -> None:
    """A victim that is deleted before `remaining` is not released twice. A new pod there stays."""
    state = calls.state(nodes=2, gpus=1)
    first, second = (state.fleet.gpus[state.fleet.row_of(name)][0] for name in ("n0", "n1"))
    hold(state, "gone", "n0", (first, 1000, 10))
    hold(state, "stays", "n1", (second, 500, 5))
    eviction = Eviction(state.fleet, state.allocations)
    eviction.add({"n0": ["gone"], "n1": ["stays"]})
    state.remove_pod("gone")
    hold(state, "new", "n0", (first, 2000, 20))
    fleet = eviction.remaining()
    assert fleet.used_bytes[fleet.rows_of(["n0", "n1"]), 0].tolist() == [2000, 0]
    state.remove_node("n1")
    assert eviction.remaining().used_bytes.sum() == 2000


def test_entries_of_allocations_are_reused() -> None:
    held, there = Allocations(), dict[str, list[GpuAmount]]()
    for number in range(2000):
        uid, cores = f"u{number * 7 % 40}", [(None, 0, 50)[n % 3] for n in range(number % 9)]
        there[uid] = [GpuAmount(slot, number, core) for slot, core in enumerate(cores)]
        held.put(uid, 1 + number, there[uid])
        if number % 3 == 0:
            assert held.pop(uid) == there.pop(uid)
        entries, counts = held.find([*there, "unknown"])
        assert counts.tolist() == [*map(len, there.values()), 0]
        sizes = [each.memory_bytes for taken in there.values() for each in taken]
        assert held.memory_bytes[entries].tolist() == sizes
    assert len(held.row) <= 40 * 9 * 2
