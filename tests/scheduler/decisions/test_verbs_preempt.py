"""preempt over a state: the victims whose eviction frees GPUs for a pod."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from gpuslice.contract import names as words
from scheduler.decisions.state import Assumed, State
from scheduler.decisions.verbs import Verbs
from scheduler.kubernetes.translate import pod
from tests.scheduler import calls, objects

Victims = Mapping[str, Sequence[str]]

HALF = objects.container("main", gpu=50)


def share(percent: int) -> dict[str, object]:
    return {words.RESOURCE_CORE: percent, words.RESOURCE_MEMORY_RATIO: percent}


def hold(state: State, uid: str, at: str, minor: int, percent: int) -> None:
    """Binds a pod to the node with this percentage of the GPU."""
    entry = (f"GPU-{at}-{minor}", minor, share(percent))
    annotations = {words.ANNOTATION_DEVICE_ALLOCATED: objects.allocated(entry)}
    state.observe_pod(pod(calls.pod(uid, node=at, annotations=annotations)))


def full() -> State:
    """n0: GPUs of 60 and 40 each. n1: GPUs of 100 each."""
    state = calls.state(nodes=2, gpus=2)
    for minor in range(2):
        hold(state, f"60-{minor}", "n0", minor, 60)
        hold(state, f"40-{minor}", "n0", minor, 40)
        hold(state, f"100-{minor}", "n1", minor, 100)
    return state


def preempted(state: State, raw: dict[str, Any], victims: Victims) -> Any:
    answer = b"".join(Verbs(state).preempt(calls.preemption(raw, victims)))
    return calls.loads(answer)["NodeNameToMetaVictims"]


BOTH_40: Victims = {"n0": ["40-0", "40-1"]}


def test_victims_that_free_no_gpu_are_spared_and_others_stay_as_they_came() -> None:
    raw, others = calls.pod("high", HALF), {"n1": ["100-1"]}
    assert preempted(full(), raw, {**BOTH_40, **others}) == calls.metas(others)
    assert preempted(full(), raw, BOTH_40) == {}


def test_the_answer_to_preempt_has_the_format_of_go() -> None:
    body = calls.preemption(calls.pod("high", HALF), {"n1": ["100-0"]})
    assert b"".join(Verbs(full()).preempt(body)) == (
        b'{"NodeNameToMetaVictims":{"n1":{"Pods":[{"UID":"100-0"}],"NumPDBViolations":0}}}'
    )


def test_preempt_does_not_change_the_state() -> None:
    state = full()
    before, changes = copy.deepcopy(state.fleet), state.fleet.changes
    assert preempted(state, calls.pod("high", HALF), {"n1": ["100-0"]})
    assert (state.fleet.free_bytes == before.free_bytes).all()
    assert (state.fleet.used_core == before.used_core).all()
    assert state.fleet.changes == changes


def test_preempt_keeps_all_victims_of_a_pod_without_a_share() -> None:
    raw = calls.pod("high", objects.container("main"))
    assert preempted(full(), raw, BOTH_40) == calls.metas(BOTH_40)


def test_no_pod_is_preempted_for_a_request_that_is_refused() -> None:
    raw = calls.pod("high", objects.container("main", gpu=150))
    assert preempted(full(), raw, {"n1": ["100-0", "100-1"]}) == {}


@pytest.mark.parametrize("victims", [["stranger"], ["100-0"], []])
def test_a_victim_without_a_gpu_of_the_node_frees_none(victims: list[str]) -> None:
    """One of them holds GPUs of another node."""
    assert preempted(full(), calls.pod("high", HALF), {"n0": victims}) == {}


def test_victims_without_a_gpu_are_preempted_where_a_gpu_is_free() -> None:
    """They are preempted where the node lacks processors, for example."""
    state, victims = calls.state(nodes=1, gpus=1), {"n0": ["busy"]}
    assert preempted(state, calls.pod("high", HALF), victims) == calls.metas(victims)


def test_a_victim_that_is_named_twice_gives_back_once() -> None:
    raw = calls.pod("high", objects.container("main", gpu=50))
    assert preempted(full(), raw, {"n0": ["40-0", "40-0"]}) == {}


def test_a_pod_that_has_gpus_preempts_on_their_node_alone() -> None:
    """Its binding may have been applied; its processors may be taken meanwhile."""
    state, raw = calls.state(nodes=2, gpus=1), calls.pod("high", HALF)
    state.assume("high", Assumed(calls.placed(state, raw, "n0"), {}, 9.0))
    victims = {"n0": ["busy"], "n1": ["busier"]}
    assert preempted(state, raw, victims) == calls.metas({"n0": ["busy"]})
    assert preempted(state, raw, {"n1": ["busier"]}) == {}
    hold(state, "high", "n0", 0, 50)
    assert preempted(state, raw, victims) == {}
