"""Compares the vectorised core with plain loops, over random fleets."""

from __future__ import annotations

import random

import numpy as np
import pytest

from scheduler.core.fit import feasible, fit
from scheduler.core.place import Placement, place
from scheduler.core.reasons import Reason
from scheduler.core.request import Policy, Request
from scheduler.core.score import score
from scheduler.core.together import assignment, together
from tests.scheduler.core import fleets, oracle

SEARCHES = 25


@pytest.mark.parametrize("seed", range(10))
def test_fit_and_place_agree_with_plain_loops(seed: int) -> None:
    """A thousand fleets for each seed."""
    chance = random.Random(seed)
    seen: dict[Reason, int] = {}
    for _ in range(1_000):
        nodes, request = fleets.nodes(chance), fleets.request(chance)
        fleet = fleets.fleet(nodes)
        rows = fleet.rows_of([node.name for node in nodes])
        possible, reasons = fit(fleet, request, rows)
        said = [oracle.why_not(node, request) for node in nodes]
        assert [Reason(each) for each in reasons] == said, (nodes, request)
        assert [reason is Reason.FITS for reason in said] == possible.tolist()
        # Few rows are gathered, many are taken from the whole: the results must be equal.
        assert feasible(fleet, request, rows[:1]).tolist() == possible[:1].tolist()
        for node, row, reason in zip(nodes, rows, said, strict=True):
            seen[reason] = seen.get(reason, 0) + 1
            check_placement(node, request, place(fleet, request, int(row)), reason)
        scores = score(fleet, request, rows[possible])
        assert ((scores >= 0) & (scores <= 1 + 1e-9)).all(), (nodes, request, scores)
        few = score(fleet, request, rows[possible][:1])
        assert np.array_equal(few, scores[:1])
    assert min(seen.get(reason, 0) for reason in fleets.REACHED) > 3, seen


@pytest.mark.parametrize("seed", range(4))
def test_place_succeeds_where_fit_does_by_every_policy(seed: int) -> None:
    """The requests have many containers. The policy's own rules may find no place."""
    chance = random.Random(seed)
    for _ in range(SEARCHES):
        nodes = fleets.large_nodes(chance)
        tight = chance.random() < 0.6
        request = fleets.tight_request(chance, nodes[0]) if tight else fleets.large_request(chance)
        fleet = fleets.fleet(nodes)
        rows = fleet.rows_of([node.name for node in nodes])
        for node, row, value in zip(nodes, rows, fit(fleet, request, rows)[1], strict=True):
            for default in Policy:
                found = place(fleet, request, int(row), default)
                check_placement(node, request, found, Reason(int(value)))


def test_the_pass_over_all_nodes_finds_on_each_what_it_finds_on_that_alone() -> None:
    """Nodes with GPUs of several sizes, which compare bytes and percent differently."""
    chance = random.Random(0)
    for _ in range(300):
        nodes = fleets.large_nodes(chance)
        request = fleets.tight_request(chance, nodes[0])
        fleet = fleets.fleet(nodes)
        rows = fleet.rows_of([node.name for node in nodes])
        alone = [assignment(fleet, request, int(row)) is not None for row in rows]
        assert together(fleet, request, rows).tolist() == alone, (nodes, request)


def check_placement(
    node: oracle.Node, request: Request, found: Placement | Reason, said: Reason
) -> None:
    if isinstance(found, Reason):
        assert said is not Reason.FITS, (node, request, found)
        return
    assert said is Reason.FITS
    slots = {held.gpu.uuid: slot for slot, held in enumerate(node.gpus)}
    chosen = [
        [slots[share.uuid] for share in found.shares if share.container == container.name]
        for container in request.containers
    ]
    assert oracle.is_allowed(node, request, chosen), (node, request, found)
    for peak in found.peaks:
        slot = slots[peak.uuid]
        on = [number for number, gpus in enumerate(chosen) if slot in gpus]
        held = node.gpus[slot]
        assert (peak.memory_bytes, peak.core_percent) == oracle.holds(
            request.containers, on, held.gpu
        )
        exact = peak.memory_bytes * 100 // held.gpu.total_bytes
        assert exact <= peak.memory_percent <= 100
    assert [peak.minor for peak in found.peaks] == sorted(peak.minor for peak in found.peaks)
    if len(request.containers) == 1 and request.containers[0].gpus == 1 and request.scope == 1:
        policy = request.policy or Policy.BINPACK
        assert chosen == [[oracle.first_choice(node, request, policy)]], (node, request)
