"""What the state looks like to people and to metrics."""

from __future__ import annotations

from contract import names
from scheduler import translate, view
from scheduler.core.reasons import Reason
from scheduler.simulate import fleet, simulate
from scheduler.state import State
from tests.scheduler.objects import Gi, card, container, device, node, pod


def a_state() -> State:
    return fleet(
        [
            {"kind": "Node", **node("n1", cordoned_cards="GPU-b")},
            {"kind": "Node", **node("n2")},
            {**device("n1", card("GPU-a", 0), card("GPU-b", 1))},
        ]
    )


def test_the_numbers_over_all() -> None:
    state = a_state()
    simulate(state, pod(container("main", ratio=50, core=30)))
    assert view.summary(state.fleet) == view.Summary(
        nodes={Reason.FITS: 1, Reason.NO_DEVICE: 1},
        usable_cards=1,
        unusable_cards=1,
        total_bytes=48 * Gi,
        granted_bytes=12 * Gi,
        free_bytes=12 * Gi,
        largest_free_bytes=12 * Gi,
        granted_core_ratio=0.15,
    )
    assert state.assumed_count == 1


def test_of_nothing_there_is_nothing() -> None:
    told = view.summary(State().fleet)
    assert told.largest_free_bytes == 0 and told.granted_core_ratio == 0.0 and not told.nodes


def test_each_card_and_who_holds_it() -> None:
    state = a_state()
    simulate(state, pod(container("main", ratio=50)))
    assert view.names_of(state) == ["n1", "n2"]
    assert view.names_of(state, "n2") == ["n2"]
    assert view.names_of(state, "n9") == []
    (told,) = view.nodes(state, ["gone", "n1"])
    first, second = told["cards"]
    assert (told["reason"], told["isolates"]) == ("FITS", True)
    assert first["holders"] == [
        {
            "pod": "default/pod-u-1",
            "uid": "simulated-0",
            "memory_bytes": 12 * Gi,
            "core_percent": None,
            "assumed": True,
        }
    ]
    assert (first["granted_bytes"], first["shares_without_core"]) == (12 * Gi, 1)
    assert second["usable"] is False and second["holders"] == []


def test_a_pod_that_holds_nothing_is_no_holder() -> None:
    state = a_state()
    state.see_pod(translate.pod(pod(container("main"), node="n1")))
    assert state.holders("n1") == []


def test_problems_name_node_and_pod() -> None:
    state = a_state()
    broken = {names.ANNOTATION_DEVICE_ALLOCATED: "{"}
    asks = pod(container("main", ratio=50), node="n1", annotations=broken)
    state.see_pod(translate.pod(asks))
    (problem,) = view.problems(state)
    assert (problem["node"], problem["pod"]) == ("n1", "default/pod-u-1")
    assert state.problems()[0].uid == "u-1"
