"""The state of a node of two GPUs: which pods hold them, and which GPUs take no share."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import pytest

from gpuslice.contract import names
from scheduler.core.fit import fit
from scheduler.core.fleet import Fleet
from scheduler.core.place import Placement, place
from scheduler.core.reasons import Reason
from scheduler.core.request import ContainerRequest, Request
from scheduler.decisions.state import Assumed, State
from scheduler.kubernetes import binding, translate
from scheduler.kubernetes.facts import PodFacts
from scheduler.kubernetes.leases import agent_lease
from tests.scheduler import calls
from tests.scheduler.objects import allocated, container, device, gpu, lease, node, pod, resources
from tests.support import GIB

HALF = Request([ContainerRequest("main", core_percent=50, memory_ratio=Fraction(1, 2))])
ANY = Request([ContainerRequest("main", memory_bytes=1)])
Event = Callable[[State], object]
NONE = {"GPU-a": (0, 0, 0), "GPU-b": (0, 0, 0)}
HALF_OF_A = {"GPU-a": (12, 50, 0), "GPU-b": (0, 0, 0)}


def observe_node(state: State, raw: dict[str, Any]) -> None:
    state.observe_node(translate.node(raw))


def observe_device(state: State, raw: dict[str, Any]) -> None:
    state.observe_device(translate.device(raw))


def observe_lease(
    state: State, raw: dict[str, Any], now_s: float = 0.0, age_s: float = 0.0
) -> None:
    read = agent_lease(raw)
    assert read is not None
    state.observe_lease(read, now_s, age_s)


def made(*gpus: dict[str, Any]) -> State:
    """Return a state with a node n1 that has these GPUs. The default is GPU-a and GPU-b."""
    state = State()
    calls.add_node(state, "n1", *(gpus or (gpu("GPU-a", 0), gpu("GPU-b", 1))))
    return state


def holding(
    uid: str,
    uuid: str | None = "GPU-a",
    minor: int = 0,
    on: str = "n1",
    phase: str = "Running",
    **held: object,
) -> PodFacts:
    """Return a bound pod. By default it holds half of GPU-a."""
    text = allocated((uuid, minor, resources(**(held or {"memory": "12Gi", "core": 50}))))
    annotations = {names.ANNOTATION_DEVICE_ALLOCATED: text}
    half = container("main", ratio=50)
    return translate.pod(pod(half, uid=uid, node=on, phase=phase, annotations=annotations))


def used(state: State) -> dict[str, tuple[int, int, int]]:
    """Return for each GPU its GiB and percent in use, and how many shares request no core."""
    fleet, row = state.fleet, state.fleet.row_of("n1")
    columns = fleet.used_bytes // GIB, fleet.used_core, fleet.uncapped_shares
    return {
        gpu.uuid: tuple(int(column[row, slot]) for column in columns)  # type: ignore[misc]
        for slot, gpu in enumerate(fleet.gpus[row])
    }


def reason(state: State, request: Request = ANY) -> Reason:
    _, reasons = fit(state.fleet, request, state.fleet.rows_of(["n1"]))
    return Reason(int(reasons[0]))


def chosen(state: State) -> Placement:
    found = place(state.fleet, HALF, state.fleet.row_of("n1"))
    assert isinstance(found, Placement)
    return found


def texts(state: State) -> list[str]:
    return [f"{each.node} {each.about} {each.text}".strip() for each in state.problems()]


# --- pods


def test_pods_bound_by_us_by_koordinator_and_by_hand_all_count() -> None:
    state = made()
    half, annotations = container("main", core=50, ratio=50), binding.annotations_of(chosen(state))
    ours = pod(half, uid="ours", node="n1", annotations=annotations)
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
    for _ in range(2):
        state.observe_pod(holding("u", phase=phase))
        assert used(state) == NONE
    state.remove_pod("u")
    assert used(state) == NONE
    assert (state.node_of("u"), state.is_bound("u")) == (None, False)


MOST: dict[str, tuple[list[dict[str, Any]], tuple[int, int, int]]] = {
    "what it asks for": (
        [container("main", core=50, ratio=50), container("o", memory="1Gi", core=10)],
        (13, 60, 0),
    ),
    "at most the GPU": (
        [container(f"c{n}", memory="24Gi", core=100) for n in range(2)],
        (24, 100, 0),
    ),
    "without core": ([container("c", ratio=10)], (2, 0, 1)),
    "refused": ([container("main", core=50)], (24, 100, 0)),
}


@pytest.mark.parametrize("asked", MOST)
def test_an_unreadable_annotation_occupies_every_gpu_and_is_reported(asked: str) -> None:
    state, (containers, most) = made(), MOST[asked]
    annotations = {names.ANNOTATION_DEVICE_ALLOCATED: "{"}
    state.observe_pod(translate.pod(pod(*containers, uid="u", node="n1", annotations=annotations)))
    assert used(state) == {"GPU-a": most, "GPU-b": most}
    (problem,) = state.problems()
    assert (problem.node, problem.about, problem.uid) == ("n1", "default/pod-u", "u")
    assert problem.text.startswith(f"annotation {names.ANNOTATION_DEVICE_ALLOCATED}: not")
    state.remove_pod("u")
    assert used(state) == NONE


def test_a_vanished_gpu_keeps_its_allocation_and_is_reported() -> None:
    state, lost = made(), "n1 default/pod-u holds a GPU that its node does not have: "
    state.observe_pod(holding("u"))
    observe_device(state, device("n1", gpu("GPU-b", 1)))
    assert used(state) == {"GPU-b": (0, 0, 0)}
    assert texts(state) == [f"{lost}GPU-a"]
    observe_device(state, device("n1", gpu("GPU-a", 0), gpu("GPU-b", 1)))
    assert (used(state), texts(state)) == (HALF_OF_A, [])
    state.observe_pod(holding("u", None, 7))
    assert texts(state) == [f"{lost}minor 7"]
    state.observe_pod(holding("u", None, 1, ratio=50))
    assert used(state) == {"GPU-a": (0, 0, 0), "GPU-b": (12, 0, 1)}
    assert texts(state) == []
    state.observe_pod(holding("u", None, 1, "n2", ratio=50))
    assert used(state) == NONE


def test_a_node_replaced_under_its_name() -> None:
    """The old node's inventory does not apply to the new node. The old node's pods still hold the
    GPUs in their allocations."""
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
    state.assume("assumed", Assumed(chosen(state), {}, 10.0))
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
        f"n1  GPU-a: overcommitted: {40 * GIB} of {24 * GIB} bytes, 160 of 100 percent of core"
    ]
    state.remove_pod("u-1")
    assert texts(state) == []
    assert int(fleet.free_bytes[row, 0]) == 4 * GIB
    state.observe_pod(holding("u-3", memory="1Gi", core=20))
    assert texts(state) == []
    state.observe_pod(holding("u-4", memory="1Gi"))
    (text,) = texts(state)
    assert text.endswith("bytes, 100 of 99 percent of core"), "u-4 needs a percent of core too"


# --- GPUs that take no share, and nodes without an inventory or an agent


@pytest.mark.parametrize("what", ["cordoned", "excluded"])
def test_a_cordoned_or_excluded_gpu_keeps_its_shares_alone(what: str) -> None:
    """An index or a misspelt UUID in the annotation has no effect, and is reported."""
    state, raw, held = made(gpu("GPU-a", 0)), node("n1"), {"GPU-a": (12, 50, 0)}
    key, annotations = f"gpuslice.io/{what}-gpus", raw["metadata"]["annotations"]
    state.observe_pod(holding("u"))
    annotations[key] = "GPU-a"
    observe_node(state, raw)
    assert (used(state), reason(state), texts(state)) == (held, Reason.NO_USABLE_GPU, [])
    del annotations[key]
    observe_node(state, raw)
    assert (used(state), reason(state, HALF)) == (held, Reason.FITS)
    annotations[key] = "GPU-a, GPU-A, 0, 1, 2, 3"
    observe_node(state, raw)
    assert texts(state) == [
        f"n1  metadata.annotations[{key}]: invalid value 0, 1, 2 and 2 more: must be UUIDs of GPUs"
        " in the node's Device; it has no effect"
    ]


def test_a_node_takes_no_share_without_a_healthy_gpu_an_inventory_and_a_ready_agent() -> None:
    state, broken, sick = made(), device("n1"), device("n1", gpu("GPU-a", 0, health=False))
    broken["spec"]["devices"] = 5
    unreadable = ["n1  Device: spec.devices: invalid value 5: must be a list"]
    changes: Sequence[tuple[Event, Reason, list[str]]] = [
        (partial(observe_device, raw=sick), Reason.NO_USABLE_GPU, []),
        (partial(observe_device, raw=broken), Reason.DEVICE_UNREADABLE, unreadable),
        (partial(State.remove_device, name="n1"), Reason.NO_DEVICE, []),
        (partial(observe_device, raw=device("n1", gpu("GPU-a", 0))), Reason.FITS, []),
        (
            partial(observe_lease, raw=lease("n1", 1, "no driver")),
            *(Reason.AGENT_NOT_READY, ["n1  node agent: no driver"]),
        ),
        (partial(observe_lease, raw=lease("n1", 2)), Reason.FITS, []),
        (partial(State.remove_lease, node="n1"), Reason.AGENT_MISSING, []),
    ]
    for change, expected, problems in changes:
        for _ in range(2):
            change(state)
            assert (reason(state), texts(state)) == (expected, problems)


@pytest.mark.parametrize("age_s", [0.0, 30.0])
def test_a_lease_that_has_not_changed_expires_and_its_age_before_we_began_counts(
    age_s: float,
) -> None:
    state, last_s = made(), 140.0 - age_s
    state.remove_lease("n1")
    observe_lease(state, lease("n1", 1), 100.0, age_s)
    assert state.tick(last_s) == []
    observe_lease(state, lease("n1", 1), last_s + 0.1)
    assert (state.tick(last_s + 0.1), state.tick(last_s + 0.2)) == (["n1"], [])
    assert (reason(state), state.agents.has_ready) == (Reason.AGENT_LEASE_EXPIRED, False)
    state.remove_lease("n1")
    observe_lease(state, lease("n1", 1), last_s + 1.0, age_s=40.1)
    for _ in range(2):
        assert reason(state) is Reason.AGENT_LEASE_EXPIRED
        observe_lease(state, lease("n1", 1), last_s + 2.0)
    observe_lease(state, lease("n1", 2), last_s + 3.0)
    assert (reason(state), state.agents.has_ready) == (Reason.FITS, True)


# --- events in any order

COLUMNS = ("total_bytes", "used_bytes", "used_core", "uncapped_shares", "usable", "free_bytes")
NODES = ("n1", "n2", "n3")


def histories(chance: random.Random) -> Sequence[Sequence[Event]]:
    """Return a list of events for each object of a cluster, in order."""
    all_of: list[Sequence[Event]] = []
    for name in NODES:
        seen: list[Event] = [partial(observe_node, raw=node(name, f"{name}-{n}")) for n in (0, 1)]
        if chance.random() < 0.3:
            seen.append(partial(State.remove_node, name=name))
        inventories = [
            device(name, *(gpu(f"{name}-{n}", (n + turn) % 3, "4Gi") for n in range(2 + turn)))
            for turn in (0, 1)
        ]
        devices = [partial(observe_device, raw=raw) for raw in inventories]
        all_of += [seen, devices, [partial(observe_lease, raw=lease(name))]]
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
    rows = {name: row for name in NODES if (row := fleet.row_of(name))}
    return {
        name: (
            int(fleet.blocked_by[row]),
            [gpu.uuid for gpu in fleet.gpus[row]],
            *(getattr(fleet, column)[row][:4].tolist() for column in COLUMNS),
        )
        for name, row in rows.items()
    }


@pytest.mark.parametrize("seed", range(200))
def test_the_order_of_events_does_not_matter(seed: int) -> None:
    """The events of each object stay in order. Those of different objects are interleaved at
    random."""
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
