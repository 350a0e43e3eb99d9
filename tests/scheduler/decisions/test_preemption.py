"""The victims of a preemption: pods that free a GPU, of low priority, as few as suffice."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest

from gpuslice.contract.names import ANNOTATION_ALLOCATE_HINT
from scheduler.core.reservations import Nomination
from scheduler.decisions.state import UNCONFIRMED_S, State
from scheduler.decisions.verbs import Verbs
from scheduler.kubernetes import requests, translate
from tests.scheduler import calls, objects
from tests.scheduler.calls import hold

HIGH: Final = 1000
Held = tuple[str, int, int, int]
"""A pod: node, minor, percent, priority. Its UID is its index in the list."""


def _state(*held: Held, nodes: int = 1) -> State:
    state = calls.state(nodes=nodes, gpus=2)
    for number, (node, minor, percent, priority) in enumerate(held):
        labels = {"app": f"app-{number}", "group": str(number % 2)}
        hold(state, str(number), node, minor, percent, priority=priority, labels=labels)
    return state


def _budget(state: State, allowed: int, **selector: object) -> None:
    metadata = {"namespace": "default", "name": f"budget-{selector}"}
    status = {"disruptionsAllowed": allowed}
    raw = {"metadata": metadata, "spec": {"selector": selector}, "status": status}
    state.budgets.observe(translate.budget(raw))


def _victims(
    state: State, offered: Mapping[str, Sequence[str]], uid: str = "high", **asked: Any
) -> dict[str, set[str]]:
    raw = calls.pod(uid, objects.container("main", **asked), priority=HIGH)
    found = calls.preempted(Verbs(state), raw, offered)
    return {node: {each["UID"] for each in kept["Pods"]} for node, kept in found.items()}


QUARTERS: Final = [("n0", minor, 25, 1) for _ in range(4) for minor in range(2)]
"""Pods 0, 2, 4 and 6 on GPU 0, the others on GPU 1."""
CASES: Final[Mapping[str, tuple[Sequence[Held], dict[str, int], set[str]]]] = {
    "a whole GPU": (QUARTERS, {"gpu": 100}, {"0", "2", "4", "6"}),
    "two whole GPUs": (QUARTERS, {"gpu": 200}, {*"01234567"}),
    "the lowest priority": (
        [("n0", 0, 100, 2), ("n0", 1, 50, 1), ("n0", 1, 50, 1)],
        {"gpu": 100},
        {"1", "2"},
    ),
    "the lowest of the highest priorities": (
        [("n0", 0, 100, 5), ("n0", 1, 50, 9), ("n0", 1, 50, 1)],
        {"gpu": 100},
        {"0"},
    ),
    "one large pod instead of several small ones": (
        [("n0", 1, 20, 1), ("n0", 1, 20, 1), ("n0", 1, 60, 1), ("n0", 0, 100, HIGH)],
        {"core": 30, "ratio": 30},
        {"2"},
    ),
    "few pods": (
        [*[("n0", 0, 10, 1)] * 10, ("n0", 1, 95, 1), ("n0", 1, 5, 1)],
        {"gpu": 100},
        {"10", "11"},
    ),
    "none of equal priority": ([("n0", 0, 100, HIGH), ("n0", 1, 100, HIGH)], {"gpu": 50}, set()),
}


@pytest.mark.parametrize("case", CASES)
def test_the_victims_are(case: str) -> None:
    """kube-scheduler offers a pod that has no GPU."""
    held, asked, victims = CASES[case]
    expected = {"n0": {"cpu", *victims}} if victims else {}
    assert _victims(_state(*held), {"n0": ["cpu"]}, "high", **asked) == expected


def test_kube_schedulers_own_victims_are_kept_where_they_suffice() -> None:
    state = _state(*QUARTERS)
    assert _victims(state, {"n0": ["0", "2"]}, gpu=50) == {"n0": {"0", "2"}}


def test_a_victim_without_a_gpu_stays_because_the_node_may_lack_cpus() -> None:
    assert _victims(_state(*QUARTERS), {"n0": ["0", "cpu"]}, gpu=50) == {"n0": {"cpu", "4", "6"}}


def test_the_best_node_of_the_call_is_chosen() -> None:
    """Node n2 would be better, but kube-scheduler does not offer it."""
    state = _state(("n0", 0, 100, 5), ("n1", 0, 100, 3), ("n2", 0, 100, 1), nodes=3)
    for number in range(3):
        hold(state, f"full-{number}", f"n{number}", 1, 100, priority=HIGH)
    assert _victims(state, {"n0": ["0"], "n1": ["1"]}, gpu=50) == {"n1": {"1"}}


BUDGETS: Final[Mapping[str, tuple[int, dict[str, object], set[str]]]] = {
    "none": (0, {"matchLabels": {"app": "other"}}, {"0"}),
    "an empty one, which selects no pod": (0, {}, {"0"}),
    "one that allows it": (1, {"matchLabels": {"app": "app-0"}}, {"0"}),
    "labels": (0, {"matchLabels": {"app": "app-0"}}, {"1"}),
    "an expression": (
        0,
        {"matchExpressions": [{"key": "app", "operator": "In", "values": ["app-0", "x"]}]},
        {"1"},
    ),
    "a negated expression": (
        0,
        {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["app-1"]}]},
        {"1"},
    ),
    "one for both pods, which kube-scheduler may violate": (
        0,
        {"matchExpressions": [{"key": "app", "operator": "Exists"}]},
        {"0"},
    ),
}


@pytest.mark.parametrize("which", BUDGETS)
def test_a_disruption_budget_protects_pods(which: str) -> None:
    """Without a budget the pod of lower priority is the victim."""
    allowed, selector, victims = BUDGETS[which]
    state = _state(("n0", 0, 100, 1), ("n0", 1, 100, 2))
    _budget(state, allowed, **selector)
    assert _victims(state, {"n0": ["cpu"]}, gpu=50) == {"n0": {"cpu", *victims}}


def test_a_budget_protects_within_a_gpu_and_ends_with_its_object() -> None:
    state = _state(("n0", 0, 50, 1), ("n0", 0, 50, 2), ("n0", 1, 100, HIGH))
    _budget(state, 0, matchLabels={"app": "app-0"})
    assert _victims(state, {"n0": ["cpu"]}, gpu=50) == {"n0": {"cpu", "1"}}
    state.reservations.forget("high")
    state.budgets.remove(f"default/budget-{dict(matchLabels={'app': 'app-0'})}")
    assert _victims(state, {"n0": ["cpu"]}, gpu=50) == {"n0": {"cpu", "0"}}


def test_pods_of_equal_priority_get_different_victims() -> None:
    state, whole = _state(*QUARTERS), {"gpu": 100}
    first = _victims(state, {"n0": ["0"]}, "first", **whole)["n0"]
    second = _victims(state, {"n0": ["0"]}, "second", **whole)["n0"]
    assert (len(first), len(second), first & second) == (4, 4, set())
    assert _victims(state, {"n0": ["0"]}, "third", **whole) == {}


def test_pods_that_terminate_are_no_further_victims() -> None:
    """Their GPU is as good as free. kube-scheduler needs a victim, and deletes them no further."""
    state = _state(*QUARTERS)
    for uid in ("0", "2"):
        hold(state, uid, "n0", 0, 25, priority=1, ends=True)
    assert _victims(state, {"n0": ["1", "4"]}, gpu=50) == {"n0": {"0", "2"}}
    state.reservations.forget("high")
    assert _victims(state, {"n0": ["1", "4"]}, gpu=100) == {"n0": {"4", "6"}}


def test_gpus_of_one_scope_are_freed() -> None:
    """GPUs 0 and 2 have the lowest priorities, but GPUs 0 and 1 are of one NUMA node."""
    state = State()
    gpus = (objects.gpu(f"GPU-n0-{n}", n, numa=n // 2) for n in range(4))
    calls.add_node(state, "n0", *gpus)
    for minor, priority in enumerate((1, 5, 1, HIGH)):
        hold(state, str(minor), "n0", minor, 100, priority=priority)
    raw: dict[str, Any] = calls.pod("high", objects.container("main", gpu=200), priority=HIGH)
    hint = {"gpu": {"requiredTopologyScope": "NUMANode"}}
    raw["metadata"]["annotations"] = {ANNOTATION_ALLOCATE_HINT: json.dumps(hint)}
    found = calls.preempted(Verbs(state), raw, {"n0": ["0"]})
    assert {each["UID"] for each in found["n0"]["Pods"]} == {"0", "1"}


@pytest.mark.parametrize("node, other", [("n0", "n1"), ("n1", "n0")])
def test_the_gpu_is_kept_on_the_node_that_kube_scheduler_nominates(node: str, other: str) -> None:
    """The answer names node n0, where the victim has the lower priority."""
    full = [(name, 1, 100, HIGH) for name in ("n0", "n1")]
    state = _state(("n0", 0, 100, 1), ("n1", 0, 100, 2), *full, nodes=2)
    offered = {"n0": ["0"], "n1": ["1"]}
    assert _victims(state, offered, gpu=50) == {"n0": {"0"}}
    raw = calls.pod("high", objects.container("main", gpu=50), priority=HIGH)
    asked = requests.request(raw)
    assert asked is not None
    state.reservations.nominate("high", Nomination(node, asked, HIGH))
    for uid in "01":
        state.remove_pod(uid)
    verbs, late = Verbs(state), calls.pod("late", objects.container("main", gpu=60), priority=HIGH)
    assert calls.filtered(verbs, late, ["n0", "n1"])["NodeNames"] == [other]
    assert calls.filtered(verbs, raw, [node])["NodeNames"] == [node]


def test_a_nomination_lasts_when_its_pod_preempts_again_on_the_node() -> None:
    """The pod's status does not change then, so no watch confirms the nomination."""
    state = _state(*QUARTERS)
    asked = requests.request(calls.pod("high", objects.container("main", gpu=100)))
    assert asked is not None
    state.reservations.nominate("high", Nomination("n0", asked, HIGH))
    assert _victims(state, {"n0": ["0"]}, gpu=100) == {"n0": {"0", "2", "4", "6"}}
    state.reservations.end_overdue(UNCONFIRMED_S)
    assert state.reservations.nominated_nodes() == {"n0"}


def test_the_search_takes_no_time_for_reservations_of_other_nodes() -> None:
    """No eviction helps on any node. A pod that waits for a volume holds a GPU of each."""
    nodes = calls.names(40)
    held = [(node, minor, 60, HIGH) for node in nodes for minor in range(2)]
    state = _state(*held, nodes=len(nodes))
    verbs = Verbs(state)
    for node in nodes:
        small = calls.pod(f"small-{node}", objects.container("main", gpu=10), priority=1)
        assert calls.filtered(verbs, small, [node])["NodeNames"] == [node]
    before = state.fleet.changes
    assert _victims(state, {node: ["cpu"] for node in nodes}, gpu=50) == {}
    assert state.fleet.changes - before <= 4 * len(nodes)


def test_a_newcomer_does_not_get_the_gpu_of_a_victim() -> None:
    """The GPU is freed in two steps, and kube-scheduler has written no nomination yet."""
    state = _state(("n0", 0, 50, 1), ("n0", 0, 50, 1), ("n0", 1, 50, HIGH))
    verbs = Verbs(state)
    raw = calls.pod("high", objects.container("main", gpu=100), priority=HIGH)
    low = calls.pod("low", objects.container("main", gpu=50), priority=HIGH)
    assert set(calls.preempted(verbs, raw, {"n0": ["0"]})) == {"n0"}
    state.remove_pod("0")
    assert calls.filtered(verbs, low, ["n0"])["NodeNames"] == ["n0"], "on the other GPU"
    late = calls.pod("late", objects.container("main", gpu=50), priority=HIGH)
    assert calls.filtered(verbs, late, ["n0"])["NodeNames"] == []
    assert calls.filtered(verbs, raw, ["n0"])["NodeNames"] == []
    assert calls.filtered(verbs, late, ["n0"])["NodeNames"] == [], (
        "not after the pod's retry either"
    )
    state.remove_pod("1")
    assert calls.filtered(verbs, raw, ["n0"])["NodeNames"] == ["n0"]
