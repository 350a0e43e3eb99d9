"""Compare the vectorised core with plain loops, over random fleets."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from scheduler.core.fit import feasible, fit
from scheduler.core.place import Peak, Placement, place
from scheduler.core.reasons import Reason
from scheduler.core.request import Policy, Request
from scheduler.core.score import score
from tests.scheduler.core import fleets, oracle


def check_placement(
    node: oracle.Node, request: Request, found: Placement | Reason, said: Reason
) -> None:
    assert isinstance(found, Placement) == (said is Reason.FITS), (node, request, found)
    if not isinstance(found, Placement):
        return
    slots = {held.gpu.uuid: slot for slot, held in enumerate(node.gpus)}
    chosen = [
        [slots[share.uuid] for share in found.shares if share.container == container.name]
        for container in request.containers
    ]
    assert oracle.is_allowed(node, request, chosen), (node, request, found)
    mixed = [peak for peak in found.peaks if not peak.memory_bytes]
    for peak in found.peaks:
        if peak in mixed:
            continue
        gpu = node.gpus[slots[peak.uuid]].gpu
        on = [number for number, gpus in enumerate(chosen) if slots[peak.uuid] in gpus]
        held = oracle.holds(request.containers, on, gpu)
        assert (peak.memory_bytes, peak.core_percent) == held
        is_mixed = Peak(peak.uuid, peak.minor, 0, 0, None) in mixed
        assert is_mixed == oracle.is_mixed(request.containers, on)
        assert peak.memory_bytes * 100 // gpu.total_bytes <= peak.memory_percent <= 100
    assert [peak.minor for peak in found.peaks] == sorted(peak.minor for peak in found.peaks)
    if len(request.containers) == 1 and request.containers[0].gpus == 1 and request.scope == 1:
        policy = request.policy or Policy.BINPACK
        assert chosen == [[oracle.first_choice(node, request, policy)]], (node, request)


@pytest.mark.parametrize("seed", range(10))
def test_fit_and_place_agree_with_plain_loops(seed: int) -> None:
    """Each seed has a thousand fleets."""
    chance, seen = random.Random(seed), Counter[Reason]()
    for _ in range(1_000):
        nodes, request = fleets.nodes(chance), fleets.request(chance)
        fleet = fleets.fleet(nodes)
        rows = fleet.rows_of([node.name for node in nodes])
        possible, reasons = fit(fleet, request, rows)
        said = [oracle.why_not(node, request) for node in nodes]
        assert [Reason(each) for each in reasons] == said, (nodes, request)
        assert [reason is Reason.FITS for reason in said] == possible.tolist()
        # The core computes few rows and many rows in different ways. Results must be equal.
        assert feasible(fleet, request, rows[:1]).tolist() == possible[:1].tolist()
        seen.update(said)
        for node, row, reason in zip(nodes, rows, said, strict=True):
            check_placement(node, request, place(fleet, request, int(row)), reason)
        scores = score(fleet, request, rows[possible])
        assert ((scores >= 0) & (scores <= 1 + 1e-9)).all(), (nodes, request, scores)
        assert np.array_equal(score(fleet, request, rows[possible][:1]), scores[:1])
    assert min(seen[reason] for reason in fleets.REACHED) > 3, seen


@pytest.mark.parametrize("seed", range(4))
def test_place_succeeds_where_fit_does_by_every_policy(seed: int) -> None:
    """`fit` searches all nodes at once, and `place` searches one node. Requests have many
    containers. On GPUs of several sizes, the order by bytes differs from the order by percent. The
    rules of a policy alone may find no place where one exists."""
    chance = random.Random(seed)
    for _ in range(60):
        nodes = fleets.large_nodes(chance)
        request = fleets.tight_request(chance, nodes[0])
        fleet = fleets.fleet(nodes)
        rows = fleet.rows_of([node.name for node in nodes])
        for node, row, value in zip(nodes, rows, fit(fleet, request, rows)[1], strict=True):
            for default in Policy:
                found = place(fleet, request, int(row), default)
                check_placement(node, request, found, Reason(int(value)))
