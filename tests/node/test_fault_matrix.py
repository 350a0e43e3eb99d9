"""The fault matrix's column of the default containerd; `make faults` has all of them.

In each cell several containers with a grant are created while the agent or the runtime fails, by
the agent's own program with a fault in it (bench.faults). None may run without its limit.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.faults.cases import INJECTIONS, ROWS
from bench.faults.outcome import Cell, Kind
from bench.faults.rig import Rig
from lab.node.lab import Lab

from .conftest import PROBE

pytestmark = pytest.mark.node

ALONE = {"agent", "containerd"}
"""Faults during which containers are created one after the other: as many as the machine
manages."""

EXPECTED = {
    "never": {Kind.LIMITED: 1, Kind.REFUSED: 1},
    "hang": {Kind.LIMITED: 2, Kind.REFUSED: 2},
    "crash": {Kind.LIMITED: 2, Kind.REFUSED: 2},
    "killed": {Kind.LIMITED: 3, Kind.REFUSED: 2},
    "cut": {Kind.LIMITED: 2, Kind.REFUSED: 2},
    "error": {Kind.LIMITED: 1, Kind.REFUSED: 3},
    "slow": {Kind.LIMITED: 1, Kind.REFUSED: 3},
    "answer": {Kind.LIMITED: 2},
    "pieces": {Kind.LIMITED: 7},
}
"""Outcome for the other containers, the one that ran before among them."""


@pytest.fixture(scope="module")
def rig(bare_lab: Lab) -> Iterator[Rig]:
    bare_lab.stop_agent()
    with Rig(bare_lab, probe=PROBE) as made:
        yield made


@pytest.fixture(scope="module")
def naive(bare_lab: Lab) -> Iterator[Rig]:
    bare_lab.stop_agent()
    with Rig(bare_lab, probe=PROBE, naive=True) as made:
        yield made


@pytest.mark.parametrize("name", ROWS)
def test_nothing_runs_unprotected(rig: Rig, name: str) -> None:
    cell: Cell = rig.perform(ROWS[name])
    assert cell.unprotected == 0
    assert cell.recovers
    if name not in ALONE:
        assert cell.kinds == EXPECTED[name]


@pytest.mark.parametrize("name", ["never", "cut"])
def test_without_our_measures_the_matrix_fails(naive: Rig, name: str) -> None:
    cell = naive.perform(INJECTIONS[name])
    assert cell.unprotected > 0
    assert cell.recovers
