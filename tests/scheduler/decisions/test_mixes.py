"""Random pods of all dialects, bound and deleted: a plain loop agrees on each, and no GPU is
over."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

import pytest

from gpuslice.contract import dialects, names
from scheduler.core.fit import fit
from scheduler.core.fleet import Gpu
from scheduler.core.place import Placement, place
from scheduler.core.reasons import Reason
from scheduler.decisions.state import Assumed, State
from scheduler.kubernetes import binding, requests, translate
from scheduler.kubernetes.facts import DeviceFacts, LeaseFacts, NodeFacts
from scheduler.kubernetes.requests import ParsedRequest
from tests.scheduler.core import oracle

MIXES = 1_000
"""For each seed."""
NODES = ("n0", "n1", "n2", "n3")
SIZES = (46068 << 20, 11178 << 20, 997)
_ALL_ON: Final = frozenset(each.name for each in dialects.DIALECTS)
Shares = dict[str, list[tuple[oracle.Held, tuple[int, int | None]]]]


def made() -> tuple[State, Sequence[oracle.Node]]:
    """A node for each size, of two GPUs, and one with GPUs of two sizes."""
    state, nodes = State(), []
    for number, sizes in enumerate([*([size] * 2 for size in SIZES), list(SIZES[:2])]):
        name = f"n{number}"
        gpus = [Gpu(f"GPU-{name}-{at}", at, size) for at, size in enumerate(sizes)]
        state.observe_device(DeviceFacts(name, f"uid-{name}", gpus))
        state.observe_node(NodeFacts(name, f"uid-{name}", isolates=True))
        state.observe_lease(LeaseFacts(name, "now"), 0.0)
        nodes.append(oracle.Node(name, [oracle.Held(gpu) for gpu in gpus]))
    return state, nodes


Limits = dict[str, object]


def _koordinators(chance: random.Random) -> Limits:
    if chance.random() < 0.2:
        return {names.RESOURCE_GPU: chance.choice((10, 50, 100, 200))}
    memory = chance.choice(
        (
            {names.RESOURCE_MEMORY_RATIO: chance.choice((1, 10, 33, 50, 100, 200))},
            {names.RESOURCE_MEMORY: chance.choice(("1", "500", "2000Mi", "11178Mi", "40Gi"))},
        )
    )
    core = chance.choice(({}, {names.RESOURCE_CORE: chance.choice((2, 30, 50, 100))}))
    return {**memory, **core}


def _volcanos(chance: random.Random) -> Limits:
    kind = chance.choice(("sharing", "sharing", "number", "vgpu"))
    if kind == "number":
        return {dialects.VOLCANO_NUMBER: chance.choice((1, 2))}
    mib = chance.choice((1, 100, 2000, 6000, 11178))
    if kind == "sharing":
        return {dialects.VOLCANO_MEMORY: mib}
    more = chance.choice(
        ({}, {dialects.VOLCANO_VGPU_MEMORY: mib}, {dialects.VOLCANO_VGPU_PERCENT: 25})
    )
    cores = chance.choice(({}, {dialects.VOLCANO_VGPU_CORES: chance.choice((20, 100))}))
    return {dialects.VOLCANO_VGPU_NUMBER: chance.choice((1, 2)), **more, **cores}


def _hamis(chance: random.Random) -> Limits:
    amount = chance.choice(
        (
            {},
            {dialects.HAMI_MEMORY: chance.choice((1, 2000, 11178))},
            {dialects.HAMI_MEMORY_PERCENT: chance.choice((1, 12, 50, 100))},
        )
    )
    cores = chance.choice(({}, {dialects.HAMI_CORES: chance.choice((10, 50, 100))}))
    return {dialects.HAMI_GPU: chance.choice((1, 1, 2)), **amount, **cores}


def _kais(chance: random.Random) -> dict[str, str]:
    key, texts = chance.choice(
        (
            (dialects.KAI_FRACTION, ("0.1", "0.125", "0.5", ".333333", "9e-1")),
            (dialects.KAI_MEMORY, ("1", "2000", "4096", "11178")),
            ("nvidia.com/container.c0.gpu-memory.limit", ("1Mi", "3G", "8Gi")),
        )
    )
    more = {dialects.KAI_DEVICES: "2"} if chance.random() < 0.2 else {}
    return {key: chance.choice(texts), **more}


_BY_RESOURCES: Final = {
    names.SCHEDULER_NAME: (_koordinators, _hamis),
    dialects.VOLCANO.scheduler_name: (_volcanos,),
}


def asking(chance: random.Random, uid: str) -> dict[str, Any]:
    """A valid pod of one dialect, with up to three containers that request alike."""
    phases = chance.choice(("m", "m", "m", "mm", "im", "smm"))
    containers: list[dict[str, Any]] = [{"name": f"c{n}"} for n in range(len(phases))]
    annotations: dict[str, str] = {}
    scheduler = chance.choice((*_BY_RESOURCES, dialects.KAI.scheduler_name, names.SCHEDULER_NAME))
    if scheduler == dialects.KAI.scheduler_name:
        annotations = _kais(chance)
    else:
        limits = chance.choice(_BY_RESOURCES[scheduler])(chance)
        for each in containers:
            each["resources"] = {"limits": limits}
    if phases[0] == "s":
        containers[0]["restartPolicy"] = "Always"
    before = sum(phase in "is" for phase in phases)
    return {
        "metadata": {"uid": uid, "name": uid, "annotations": annotations},
        "spec": {
            "schedulerName": scheduler,
            "initContainers": containers[:before],
            "containers": containers[before:],
        },
    }


def bound(
    pod: dict[str, Any], read: ParsedRequest, found: Placement, gpus: Sequence[Gpu]
) -> dict[str, Any]:
    """The pod as the API server has it after the Binding."""
    added = binding.annotations_of(found, read.outputs(found, gpus, 1))
    metadata, spec = pod["metadata"], pod["spec"]
    annotations = {**metadata["annotations"], **added}
    return {
        "metadata": {**metadata, "annotations": annotations},
        "spec": {**spec, "nodeName": found.node},
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
            state.remove_pod(uid)
            for held, share in shares.pop(uid):
                held.shares.remove(share)
        else:
            pod, node = asking(chance, f"u-{number}"), chance.choice(nodes)
            reasons.append(_bind(state, node, pod, shares))
        if chance.random() < 0.1:
            _lose_and_recover(state, chance)
        _compare(state, nodes)
    assert reasons.count(Reason.FITS) > MIXES / 10 < len(reasons) - reasons.count(Reason.FITS)


def _lose_and_recover(state: State, chance: random.Random) -> None:
    """A GPU or the whole node is gone for a moment, with pods on it."""
    node = chance.choice(NODES)
    gpus = state.fleet.gpus[state.fleet.row_of(node)]
    if chance.random() < 0.5:
        state.observe_device(DeviceFacts(node, f"uid-{node}", gpus[:1]))
        state.observe_device(DeviceFacts(node, f"uid-{node}", gpus))
    else:
        state.remove_node(node)
        state.observe_node(NodeFacts(node, f"uid-{node}", isolates=True))


def _bind(state: State, node: oracle.Node, pod: dict[str, Any], shares: Shares) -> Reason:
    fleet, row, uid = state.fleet, state.fleet.row_of(node.name), pod["metadata"]["uid"]
    read = requests.read(pod, _ALL_ON)
    assert read is not None
    request = read.request
    said = oracle.why_not(node, request)
    assert Reason(int(fit(fleet, request, fleet.rows_of([node.name]))[1][0])) is said
    found = place(fleet, request, row)
    assert isinstance(found, Placement) == (said is Reason.FITS), (node, request)
    if isinstance(found, Placement):
        state.assume(uid, Assumed(found, {}, 0.0))
        if len(shares) % 5:  # the watch has not reported the others yet
            state.observe_pod(translate.pod(bound(pod, read, found, fleet.gpus[row])))
            assert state.is_bound(uid)
        by_uuid = {held.gpu.uuid: held for held in node.gpus}
        on: dict[str, list[int]] = {}
        for share in found.shares:
            names = [each.name for each in request.containers]
            on.setdefault(share.uuid, []).append(names.index(share.container))
        shares[uid] = [
            (by_uuid[uuid], oracle.holds(request.containers, on_it, by_uuid[uuid].gpu))
            for uuid, on_it in on.items()
        ]
        for held, each in shares[uid]:
            held.shares.append(each)
    return said


def _compare(state: State, nodes: Sequence[oracle.Node]) -> None:
    """Compare with the sums of the plain loop, of which none is over."""
    assert not state.problems()
    for node in nodes:
        row = state.fleet.row_of(node.name)
        for slot, held in enumerate(node.gpus):
            assert state.fleet.used_bytes[row, slot] == held.used_bytes <= held.gpu.total_bytes
            assert state.fleet.used_core[row, slot] == held.used_core <= held.most_core
