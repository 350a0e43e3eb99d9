"""Random pods of all dialects' kinds, bound and deleted: a plain loop agrees on each, and no GPU is
over."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from scheduler.core.fit import fit
from scheduler.core.fleet import Gpu
from scheduler.core.place import Placement, place
from scheduler.core.reasons import Reason
from scheduler.core.request import Ask, Phase, Request
from scheduler.decisions.state import State
from scheduler.kubernetes import binding, translate
from scheduler.kubernetes.facts import DeviceFacts, LeaseFacts, NodeFacts
from tests.scheduler.core import fleets, oracle

MIXES = 1_000
"""For each seed."""
SIZES = (46068 << 20, 11178 << 20, 997)
Shares = dict[str, list[tuple[oracle.Held, tuple[int, int | None]]]]


def made() -> tuple[State, Sequence[oracle.Node]]:
    """A node for each size, of two GPUs, and one with GPUs of two sizes."""
    state, nodes = State(), []
    for number, sizes in enumerate([*([size] * 2 for size in SIZES), list(SIZES[:2])]):
        name = f"n{number}"
        gpus = [Gpu(f"GPU-{name}-{at}", at, size) for at, size in enumerate(sizes)]
        state.see_device(DeviceFacts(name, f"uid-{name}", gpus))
        state.see_node(NodeFacts(name, f"uid-{name}", isolates=True))
        state.see_lease(LeaseFacts(name, "now"), 0.0)
        nodes.append(oracle.Node(name, [oracle.Held(gpu) for gpu in gpus]))
    return state, nodes


def asked(chance: random.Random) -> Request:
    """As `fleets.request`, with bytes of the sizes above."""
    found = fleets.request(chance)
    asks = []
    for ask in found.asks:
        size = ask.memory_bytes and chance.choice((ask.memory_bytes, 2000 << 20, 4096 << 20))
        asks.append(
            Ask(
                ask.container,
                ask.phase,
                ask.order,
                min(ask.gpus, 2),
                chance.choice((None, None, ask.core_percent)),
                size,
                ask.memory_ratio,
            )
        )
    return Request(asks, found.policy, (), found.scope)


def bound(uid: str, request: Request, found: Placement) -> dict[str, Any]:
    """The pod as the API server has it after the Binding."""
    before: list[dict[str, str]] = []
    for ask in request.asks:
        if ask.phase is not Phase.MAIN:
            always = {"restartPolicy": "Always"} if ask.phase is Phase.SIDECAR else {}
            before.append({"name": ask.container, **always})
    main = [{"name": ask.container} for ask in request.asks if ask.phase is Phase.MAIN]
    return {
        "metadata": {"uid": uid, "annotations": dict(binding.annotations_of(found))},
        "spec": {"nodeName": found.node, "initContainers": before, "containers": main},
    }


@pytest.mark.parametrize("seed", range(10))
def test_no_gpu_is_over_whatever_is_bound_and_deleted(seed: int) -> None:
    chance = random.Random(seed)
    state, nodes = made()
    shares: Shares = {}
    reasons: list[Reason] = []
    for number in range(MIXES):
        if shares and chance.random() < 0.45:
            uid = chance.choice(sorted(shares))
            state.lose_pod(uid)
            for held, share in shares.pop(uid):
                held.shares.remove(share)
        else:
            request, node = asked(chance), chance.choice(nodes)
            reasons.append(_bind(state, node, f"u-{number}", request, shares))
        _compare(state, nodes)
    assert reasons.count(Reason.FITS) > MIXES / 10 < len(reasons) - reasons.count(Reason.FITS)


def _bind(state: State, node: oracle.Node, uid: str, request: Request, shares: Shares) -> Reason:
    fleet, row = state.fleet, state.fleet.row_of(node.name)
    said = oracle.why_not(node, request)
    assert Reason(int(fit(fleet, request, fleet.rows_of([node.name]))[1][0])) is said
    found = place(fleet, request, row)
    assert isinstance(found, Placement) == (said is Reason.FITS), (node, request)
    if isinstance(found, Placement):
        state.assume(uid, found, 0.0)
        state.see_pod(translate.pod(bound(uid, request, found)))
        assert state.is_bound(uid)
        by_uuid = {held.gpu.uuid: held for held in node.gpus}
        on: dict[str, list[int]] = {}
        for share in found.shares:
            names = [ask.container for ask in request.asks]
            on.setdefault(share.uuid, []).append(names.index(share.container))
        shares[uid] = [
            (by_uuid[uuid], oracle.holds(request.asks, asks, by_uuid[uuid].gpu))
            for uuid, asks in on.items()
        ]
        for held, each in shares[uid]:
            held.shares.append(each)
    return said


def _compare(state: State, nodes: Sequence[oracle.Node]) -> None:
    """With the sums of the plain loop, of which none is over."""
    assert not state.problems()
    for node in nodes:
        row = state.fleet.row_of(node.name)
        for slot, held in enumerate(node.gpus):
            assert state.fleet.used_bytes[row, slot] == held.used_bytes <= held.gpu.total_bytes
            assert state.fleet.used_core[row, slot] == held.used_core <= held.most_core
