"""Allocations, from events in any order."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest

from contract import names
from scheduler.core.fit import fit
from scheduler.core.fleet import Fleet
from scheduler.core.place import Placement, place
from scheduler.core.reasons import Reason
from scheduler.core.request import ContainerRequest, Request
from scheduler.decisions.state import State
from scheduler.kubernetes import binding, requests, translate
from scheduler.kubernetes.facts import PodFacts
from tests.scheduler.objects import (
    Gi,
    allocated,
    container,
    device,
    gpu,
    lease,
    node,
    pod,
    resources,
)

HALF = Request([ContainerRequest("main", core_percent=50, memory_ratio=Fraction(1, 2))])
ANY = Request([ContainerRequest("main", memory_bytes=1)])


def observe_node(state: State, raw: dict[str, Any]) -> None:
    state.observe_node(translate.node(raw))


def observe_device(state: State, raw: dict[str, Any]) -> None:
    state.observe_device(translate.device(raw))


def observe_lease(state: State, raw: dict[str, Any], now_s: float = 0.0) -> None:
    read = translate.lease(raw)
    assert read is not None
    state.observe_lease(read, now_s)


def made(*gpus: dict[str, Any]) -> State:
    """One node, n1, with these GPUs; by default GPU-a and GPU-b."""
    state = State()
    observe_node(state, node("n1"))
    observe_device(state, device("n1", *(gpus or (gpu("GPU-a", 0), gpu("GPU-b", 1)))))
    observe_lease(state, lease("n1"))
    return state


def holding(
    uid: str,
    uuid: str | None = "GPU-a",
    minor: int = 0,
    node_name: str = "n1",
    phase: str = "Running",
    **held: object,
) -> PodFacts:
    text = allocated((uuid, minor, resources(**(held or {"memory": "12Gi", "core": 50}))))
    annotations = {names.ANNOTATION_DEVICE_ALLOCATED: text}
    raw = pod(
        container("main", ratio=50), uid=uid, node=node_name, phase=phase, annotations=annotations
    )
    return translate.pod(raw)


def used(state: State, name: str = "n1") -> dict[str, tuple[int, int, int]]:
    """By GPU: GiB, percent, shares without core."""
    fleet, row = state.fleet, state.fleet.row_of(name)
    return {
        gpu.uuid: (
            int(fleet.used_bytes[row, slot]) // Gi,
            int(fleet.used_core[row, slot]),
            int(fleet.uncapped_shares[row, slot]),
        )
        for slot, gpu in enumerate(fleet.gpus[row])
    }


def reason(state: State, request: Request = ANY, name: str = "n1") -> Reason:
    _, reasons = fit(state.fleet, request, state.fleet.rows_of([name]))
    return Reason(int(reasons[0]))


def chosen(state: State, request: Request = HALF, name: str = "n1") -> Placement:
    found = place(state.fleet, request, state.fleet.row_of(name))
    assert isinstance(found, Placement)
    return found


def texts(state: State) -> list[str]:
    return [f"{each.node} {each.about} {each.text}".strip() for each in state.problems()]


NONE = {"GPU-a": (0, 0, 0), "GPU-b": (0, 0, 0)}
HALF_OF_A = {"GPU-a": (12, 50, 0), "GPU-b": (0, 0, 0)}


# --- pods


def test_pods_bound_by_us_by_koordinator_and_by_hand_all_count() -> None:
    state = made()
    ours = pod(
        container("main", core=50, ratio=50),
        uid="ours",
        node="n1",
        annotations={**binding.annotations_of(chosen(state))},
    )
    state.observe_pod(translate.pod(ours))
    state.observe_pod(holding("koordinators", memory="6Gi", core=25, ratio=25))
    state.observe_pod(holding("by-hand", None, 1, memory="1Gi"))
    assert used(state) == {"GPU-a": (18, 75, 0), "GPU-b": (1, 0, 1)}
    assert texts(state) == []


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_pod_releases(phase: str) -> None:
    state = made()
    state.observe_pod(holding("u"))
    assert used(state) == HALF_OF_A
    state.observe_pod(holding("u", phase=phase))
    assert used(state) == NONE
    state.observe_pod(holding("u", phase=phase))
    state.remove_pod("u")
    assert used(state) == NONE
    assert (state.node_of("u"), state.is_bound("u")) == (None, False)


@pytest.mark.parametrize(
    ("containers", "most"),
    [
        (
            [container("main", core=50, ratio=50), container("o", memory="1Gi", core=10)],
            (13, 60, 0),
        ),
        ([container(f"c{n}", memory="24Gi", core=100) for n in range(2)], (24, 100, 0)),
        ([container("c", ratio=10)], (2, 0, 1)),
        ([container("main", core=50)], (24, 100, 0)),
    ],
    ids=["what it asks for", "at most the GPU", "without core", "refused"],
)
def test_an_unreadable_annotation_occupies_every_gpu_and_is_reported(
    containers: list[dict[str, Any]], most: tuple[int, int, int]
) -> None:
    state = made()
    annotations = {names.ANNOTATION_DEVICE_ALLOCATED: "{"}
    state.observe_pod(translate.pod(pod(*containers, uid="u", node="n1", annotations=annotations)))
    assert used(state) == {"GPU-a": most, "GPU-b": most}
    (text,) = texts(state)
    assert text.startswith(f"n1 default/pod-u annotation {names.ANNOTATION_DEVICE_ALLOCATED}: not")
    state.remove_pod("u")
    assert used(state) == NONE


def test_a_vanished_gpu_keeps_its_allocation_and_is_reported() -> None:
    state = made()
    state.observe_pod(holding("u"))
    observe_device(state, device("n1", gpu("GPU-b", 1)))
    assert used(state) == {"GPU-b": (0, 0, 0)}
    assert texts(state) == ["n1 default/pod-u holds a GPU that its node does not have: GPU-a"]
    observe_device(state, device("n1", gpu("GPU-a", 0), gpu("GPU-b", 1)))
    assert used(state) == HALF_OF_A
    assert texts(state) == []


def test_a_vanished_gpu_without_uuid_is_reported_by_its_minor() -> None:
    state = made()
    state.observe_pod(holding("u", None, 7))
    assert texts(state) == ["n1 default/pod-u holds a GPU that its node does not have: minor 7"]
    state.observe_pod(holding("u", None, 1, ratio=50))
    assert used(state) == {"GPU-a": (0, 0, 0), "GPU-b": (12, 0, 1)}
    assert texts(state) == []


def test_a_node_replaced_under_its_name() -> None:
    """The old node's inventory does not apply to the new one; its pods hold the GPUs that they
    name."""
    state = made()
    state.observe_pod(holding("u"))
    observe_node(state, node("n1", "another"))
    assert reason(state) is Reason.DEVICE_STALE
    observe_device(state, device("n1", gpu("GPU-c", 0), node_uid="another"))
    assert reason(state) is Reason.FITS
    assert used(state) == {"GPU-c": (0, 0, 0)}
    assert texts(state) == ["n1 default/pod-u holds a GPU that its node does not have: GPU-a"]


def test_a_list_ends_pods_that_it_lacks_but_not_assumed_ones() -> None:
    state = made()
    state.observe_pod(holding("kept"))
    state.observe_pod(holding("gone", "GPU-b", 1))
    state.assume("assumed", chosen(state), deadline_s=10.0)
    state.keep_pods(["kept"])
    assert used(state) == {"GPU-a": (24, 100, 0), "GPU-b": (0, 0, 0)}


def test_a_node_that_is_deleted_and_recreated_has_its_pods() -> None:
    state = made()
    state.observe_pod(holding("u"))
    state.remove_node("n1")
    assert reason(state) is Reason.NODE_UNKNOWN
    assert state.node_of("u") == "n1"
    state.remove_pod("gone")
    observe_node(state, node("n2"))
    observe_node(state, node("n1"))
    assert used(state) == HALF_OF_A
    state.remove_node("n1")
    state.remove_pod("u")
    observe_node(state, node("n1"))
    assert used(state) == NONE
    state.remove_node("never")


def test_foreign_grants_over_the_gpu_leave_none_free_and_are_reported() -> None:
    state = made(gpu("GPU-a", 0))
    state.observe_pod(holding("u-1", memory="20Gi", core=80))
    state.observe_pod(holding("u-2", memory="20Gi", core=80))
    fleet, row = state.fleet, state.fleet.row_of("n1")
    assert (fleet.free_bytes[row, 0], fleet.free_core[row, 0]) == (0, 0)
    assert reason(state) is Reason.MEMORY_AND_CORE
    assert texts(state) == [
        f"n1  GPU-a: overcommitted: {40 * Gi} of {24 * Gi} bytes, 160 of 100 percent of core"
    ]
    state.remove_pod("u-1")
    assert texts(state) == []
    assert int(fleet.free_bytes[row, 0]) == 4 * Gi


# --- unusable GPUs and unschedulable nodes


@pytest.mark.parametrize("what", ["cordoned", "excluded"])
def test_a_gpu_that_is_cordoned_or_excluded_takes_no_share_and_keeps_what_it_has(
    what: str,
) -> None:
    state = made(gpu("GPU-a", 0))
    state.observe_pod(holding("u"))
    changed: dict[str, Any] = {what: frozenset({"GPU-a"})}
    state.observe_node(replace(translate.node(node("n1")), **changed))
    assert used(state) == {"GPU-a": (12, 50, 0)}
    assert reason(state) is Reason.NO_USABLE_GPU
    observe_node(state, node("n1"))
    assert reason(state, HALF) is Reason.FITS
    assert used(state) == {"GPU-a": (12, 50, 0)}


@pytest.mark.parametrize("what", ["cordoned", "excluded"])
def test_a_uuid_that_withholds_no_gpu_is_reported(what: str) -> None:
    """A misspelt one, or an index, leaves the GPU open to new shares."""
    state = made(gpu("GPU-a", 0))
    key = f"gpuslice.io/{what}-gpus"
    raw = node("n1")
    raw["metadata"].setdefault("annotations", {})[key] = "GPU-a, GPU-A, 0, 1, 2, 3"
    observe_node(state, raw)
    assert [(each.node, each.about, each.text) for each in state.problems()] == [
        (
            "n1",
            "",
            f"metadata.annotations[{key}]: invalid value 0, 1, 2 and 2 more: must be UUIDs of GPUs"
            " in the node's Device; it has no effect",
        )
    ]
    raw["metadata"]["annotations"][key] = "GPU-a"
    observe_node(state, raw)
    assert not state.problems()


def test_an_unhealthy_gpu_takes_no_share_and_recovers() -> None:
    state = made(gpu("GPU-a", 0, health=False))
    assert reason(state) is Reason.NO_USABLE_GPU
    observe_device(state, device("n1", gpu("GPU-a", 0)))
    assert reason(state) is Reason.FITS


def test_a_node_without_an_inventory() -> None:
    state = made()
    state.remove_device("n1")
    state.remove_device("n1")
    assert reason(state) is Reason.NO_DEVICE


def test_an_inventory_that_cannot_be_read() -> None:
    state, broken = made(), device("n1")
    broken["spec"]["devices"] = 5
    observe_device(state, broken)
    assert reason(state) is Reason.DEVICE_UNREADABLE
    assert texts(state) == ["n1  Device: spec.devices: invalid value 5: must be a list"]


def test_a_node_whose_agent_has_not_reported_is_missing_or_not_ready() -> None:
    state = made()
    observe_lease(state, lease("n1", 1, "no driver"), 1.0)
    assert reason(state) is Reason.AGENT_NOT_READY
    assert texts(state) == ["n1  node agent: no driver"]
    observe_lease(state, lease("n1", 2), 2.0)
    assert reason(state) is Reason.FITS
    state.remove_lease("n1")
    state.remove_lease("n1")
    assert reason(state) is Reason.AGENT_MISSING


def test_a_lease_expires_when_it_has_not_changed_by_our_clock() -> None:
    state = made()
    observe_lease(state, lease("n1", 1), 10.0)
    assert state.tick(50.0) == []
    observe_lease(state, lease("n1", 1), 50.1)
    assert state.tick(50.1) == ["n1"]
    assert state.tick(50.2) == []
    assert reason(state) is Reason.AGENT_LEASE_EXPIRED
    observe_lease(state, lease("n1", 1), 51.0)
    assert reason(state) is Reason.AGENT_LEASE_EXPIRED, "observed again, unchanged"
    observe_lease(state, lease("n1", 2), 52.0)
    assert reason(state) is Reason.FITS


def test_the_age_of_a_lease_before_we_began_counts() -> None:
    state, read = made(), translate.lease(lease("n1", 1))
    assert read is not None
    state.remove_lease("n1")
    state.observe_lease(read, 100.0, age_s=30.0)
    assert (state.tick(110.0), state.tick(110.1)) == ([], ["n1"])
    state.remove_lease("n1")
    state.observe_lease(read, 110.0, age_s=40.1)
    assert reason(state) is Reason.AGENT_LEASE_EXPIRED
    state.observe_lease(read, 111.0, age_s=0.0)
    assert reason(state) is Reason.AGENT_LEASE_EXPIRED, "observed again, unchanged"
    observe_lease(state, lease("n1", 2), 112.0)
    assert reason(state) is Reason.FITS


# --- in any order

Event = Callable[[State], None]
COLUMNS = ("total_bytes", "used_bytes", "used_core", "uncapped_shares", "usable", "free_bytes")
NODES = ("n1", "n2", "n3")


def histories(chance: random.Random) -> Sequence[Sequence[Event]]:
    """For one cluster: the events of each object, in order."""
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
    """With the events of each object in order and the objects interleaved at random, the result is
    equal."""
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
            state.assume(uid, found, deadline_s=0.0)
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
