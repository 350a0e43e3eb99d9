"""The fault matrix's column of the default containerd (`make faults` has all columns).

For each row of the matrix the test creates several containers with a grant while the agent or the
runtime fails. bench.faults injects the fault into the agent's program. No container may run without
its limit.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.faults.outcome import Kind
from bench.faults.report import Column
from bench.faults.rig import INJECTIONS, ROWS, Rig
from lab.node.lab import Lab

from .scene import PROBE

pytestmark = pytest.mark.node


@pytest.fixture(scope="module")
def rig(bare_lab: Lab) -> Iterator[Rig]:
    bare_lab.stop_agent()
    with Rig(bare_lab, probe=PROBE) as made:
        yield made


@pytest.mark.parametrize("name", ROWS)
def test_nothing_runs_unprotected(rig: Rig, bare_lab: Lab, name: str) -> None:
    cell = rig.perform(ROWS[name])
    assert Column(bare_lab.release, True, {name: cell}).holds, cell
    assert cell.kinds[Kind.LIMITED]


@pytest.mark.parametrize("name", ["never", "cut"])
def test_without_our_measures_the_matrix_fails(bare_lab: Lab, name: str) -> None:
    bare_lab.stop_agent()
    with Rig(bare_lab, probe=PROBE, naive=True) as naive:
        cell = naive.perform(INJECTIONS[name])
    assert cell.unprotected > 0
    assert cell.recovers
