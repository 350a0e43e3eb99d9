"""Random pods of all dialects are bound and deleted. After each step, a plain loop agrees and no
GPU holds too much."""

from __future__ import annotations

import random
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, Final

import pytest

from gpuslice.contract.dialects import DIALECTS, KAI
from scheduler.core.fit import fit
from scheduler.core.fleet import Gpu
from scheduler.core.place import Placement, place
from scheduler.core.reasons import Reason
from scheduler.decisions.state import Assumed, State
from scheduler.kubernetes import binding, requests, translate
from scheduler.kubernetes.facts import DeviceFacts, LeaseFacts, NodeFacts
from tests.requests.rows import GRANTED
from tests.scheduler.core import oracle

MIXES = 1_000
"""The number of steps for each seed."""
SIZES = (46068 << 20, 11178 << 20, 997)
PODS: Final = [row.pod for row in GRANTED if row.says]
Shares = dict[str, list[tuple[oracle.Held, tuple[int, int | None]]]]


def made() -> tuple[State, Sequence[oracle.Node]]:
    """Return a node of two equal GPUs for each size, and one node with GPUs of two sizes."""
    state, nodes = State(), []
    for number, sizes in enumerate([*([size] * 2 for size in SIZES), list(SIZES[:2])]):
        name = f"n{number}"
        gpus = [Gpu(f"GPU-{name}-{at}", at, size) for at, size in enumerate(sizes)]
        state.observe_device(DeviceFacts(name, f"uid-{name}", gpus))
        state.observe_node(NodeFacts(name, f"uid-{name}", isolates=True))
        state.observe_lease(LeaseFacts(name, "now"), 0.0)
        nodes.append(oracle.Node(name, [oracle.Held(gpu) for gpu in gpus]))
    return state, nodes


def asking(chance: random.Random, uid: str) -> dict[str, Any]:
    """Return a valid pod of a random dialect, with up to three containers of equal requests: main,
    init and sidecar containers. A pod of KAI has one, because its annotations name only one."""
    raw = deepcopy(chance.choice(PODS))
    raw["metadata"] |= {"uid": uid, "name": uid}
    spec = raw["spec"]
    (first, *more), phases = spec["containers"], chance.choice(("m", "m", "m", "mm", "im", "smm"))
    if spec.get("schedulerName") != KAI.scheduler_name and not more and not spec["initContainers"]:
        alike = [{**first, "name": f"c{number}"} for number in range(len(phases))]
        if phases[0] == "s":
            alike[0]["restartPolicy"] = "Always"
        before = len(phases) - phases.count("m")
        spec |= {"initContainers": alike[:before], "containers": alike[before:]}
    return raw


@pytest.mark.parametrize("seed", range(10))
def test_no_gpu_is_over_whatever_is_bound_and_deleted(seed: int) -> None:
    chance = random.Random(seed)
    state, nodes = made()
    shares: Shares = {}
    reasons: list[Reason] = []
    for number in range(MIXES):
        if shares and chance.random() < 0.45:
            uid = chance.choice(sorted(shares))
            state.remove_pod(uid)
            for held, share in shares.pop(uid):
                held.shares.remove(share)
        else:
            pod, node = asking(chance, f"u-{number}"), chance.choice(nodes)
            reasons.append(_bind(state, node, pod, shares))
        _compare(state, nodes)
    assert reasons.count(Reason.FITS) > MIXES / 10 < len(reasons) - reasons.count(Reason.FITS)


def _bind(state: State, node: oracle.Node, pod: dict[str, Any], shares: Shares) -> Reason:
    fleet, row, uid = state.fleet, state.fleet.row_of(node.name), pod["metadata"]["uid"]
    read = requests.read(pod, frozenset(each.name for each in DIALECTS))
    assert read is not None
    request = read.request
    said = oracle.why_not(node, request)
    assert Reason(int(fit(fleet, request, fleet.rows_of([node.name]))[1][0])) is said
    found = place(fleet, request, row)
    assert isinstance(found, Placement) == (said is Reason.FITS), (node, request)
    if isinstance(found, Placement):
        state.assume(uid, Assumed(found, {}, 0.0))
        if len(shares) % 5:  # otherwise the watch reports the pod later
            added = binding.annotations_of(found, read.outputs(found, fleet.gpus[row], 1))
            pod["metadata"].setdefault("annotations", {}).update(added)
            pod["spec"]["nodeName"] = node.name
            state.observe_pod(translate.pod(pod))
            assert state.is_bound(uid)
        names = [each.name for each in request.containers]
        shares[uid] = []
        for held in node.gpus:
            of_gpu = [share for share in found.shares if share.uuid == held.gpu.uuid]
            if on := [names.index(share.container) for share in of_gpu]:
                shares[uid].append((held, oracle.holds(request.containers, on, held.gpu)))
                if oracle.is_mixed(request.containers, on):
                    shares[uid].append((held, (0, None)))
        for held, share in shares[uid]:
            held.shares.append(share)
    return said


def _compare(state: State, nodes: Sequence[oracle.Node]) -> None:
    """Compare each GPU's use with the plain loop's sums. Check that it is at most the capacity."""
    assert not state.problems()
    for node in nodes:
        row = state.fleet.row_of(node.name)
        for slot, held in enumerate(node.gpus):
            assert state.fleet.used_bytes[row, slot] == held.used_bytes <= held.gpu.total_bytes
            assert state.fleet.used_core[row, slot] == held.used_core <= held.most_core
