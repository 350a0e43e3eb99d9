"""The rival of the columns is a rival: it answers the same. Who asks has another core than who is
asked."""

from __future__ import annotations

import os
import random

import pytest

from bench import Result
from bench.scheduling import core, driven, fleets
from bench.scheduling.plain import choose, nodes_of


@pytest.mark.parametrize("seed", range(20))
def test_the_plain_loop_chooses_the_same_card(seed: int) -> None:
    state = fleets.filled(fleets.Size(nodes=12, pods=300))
    chance = random.Random(seed)
    rows = state.fleet.all_rows()
    for row in rows:
        for slot in range(fleets.CARDS):
            state.fleet.take(row, slot, fleets.CARD_BYTES * chance.randint(0, 60) // 100, 3)
    state.fleet.take(rows[0], 0, 0, None)
    state.fleet.give_back(rows[0], 1, 1, 1)
    if not core.fitting(state.fleet, rows).size:
        assert choose(nodes_of(state.fleet), fleets.ASKED) is None
        return
    placed = core.by_columns(state.fleet, rows)
    found = choose(nodes_of(state.fleet), fleets.ASKED)
    assert found == (placed.node, placed.shares[0].minor)


def test_a_goal_from_below_is_a_goal() -> None:
    assert Result({"a": 2.0}, {}, (), (), {"a": 2.0}).met
    assert not Result({"a": 1.9}, {}, (), (), {"a": 2.0}).met
    goals = Result({"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 3.0}, (), (), {"a": 1.0}).goals
    assert goals == {"a": "<= 1.0, >= 1.0", "b": "<= 3.0"}


def test_who_calibrates_on_the_extenders_core_asks_from_another() -> None:
    """The thread that calibrates is the one that asks afterwards, and starts those that bind."""
    before = os.sched_getaffinity(0)
    driven.calibrated(max(before))
    assert os.sched_getaffinity(0) == before
