"""The verbs filter, prioritize and preempt over a state."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from gpuslice.contract import names as words
from scheduler.core.fit import feasible
from scheduler.core.reasons import Reason
from scheduler.core.request import Policy
from scheduler.core.score import best, score
from scheduler.decisions.state import Assumed, State
from scheduler.decisions.verbs import MAX_NODES, Verbs
from scheduler.kubernetes.requests import request
from scheduler.kubernetes.translate import device, node
from tests.scheduler import calls, objects
from tests.scheduler.calls import arguments, bind, filtered, hold, names, placed

WHOLE, HALF = objects.container("main", gpu=100), objects.container("main", gpu=50)


def scored(verbs: Verbs, raw: dict[str, Any], among: list[str]) -> dict[str, int]:
    answer = json.loads(verbs.prioritize(arguments(raw, among)))
    return {each["Host"]: each["Score"] for each in answer}


def share(percent: int) -> dict[str, Any]:
    return objects.container("main", core=percent, ratio=percent)


# --- filter and prioritize


def test_filter_names_the_best_of_many_candidates() -> None:
    chance, asked = random.Random(7), request(calls.pod())
    assert asked is not None
    state, all_names = calls.state(nodes=100, gpus=1), names(100)
    for number, name in enumerate(all_names):
        percent = chance.choice((5, 10, 20, 50, 60))
        bind(state, calls.pod(f"other-{number}", share(percent)), name)
    for among in (all_names, chance.sample(all_names, 60), [*all_names, "unknown", "unknown"]):
        rows = state.fleet.rows_of(set(among) - {"unknown"})
        fitting = rows[feasible(state.fleet, asked, rows)]
        ranked = best(state.fleet, score(state.fleet, asked, fitting), fitting, MAX_NODES)
        wanted = [state.fleet.names[row] for row in fitting[ranked].tolist()]
        assert sorted(filtered(Verbs(state), calls.pod(), among)["NodeNames"]) == sorted(wanted)


PREFERRED = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}
REQUIRED: dict[str, Any] = {"requiredDuringSchedulingIgnoredDuringExecution": {}}


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        *(({"affinity": {f"{of}Affinity": PREFERRED}}, 100) for of in ("node", "pod", "podAnti")),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]}, 100),
        ({"affinity": None, "topologySpreadConstraints": None}, 32),
        ({"affinity": {"nodeAffinity": REQUIRED}}, 32),
        ({"affinity": {"podAffinity": None}}, 32),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]}, 32),
    ],
)
def test_all_nodes_are_named_for_a_pod_with_preferences(spec: dict[str, Any], named: int) -> None:
    raw, verbs = calls.pod(), Verbs(calls.state(nodes=100, gpus=1))
    raw["spec"].update(spec)
    found = filtered(verbs, raw, names(100))["NodeNames"]
    assert len(found) == named
    assert set(filtered(verbs, raw, names(100)[::-1])["NodeNames"]) == set(found)


def test_where_none_fits_each_node_has_its_reason_and_equal_ones_one_text() -> None:
    """All are unresolvable, except the node where victims of the pod may be terminating."""
    state = calls.state(nodes=4, gpus=1)
    for name in ("n0", "n1"):
        bind(state, calls.pod(f"on-{name}"), name)
    state.observe_device(device(objects.device("n2", objects.gpu("GPU-small", 0, "8Gi"))))
    state.observe_node(node(objects.node("n3", isolates=False)))
    raw = calls.pod("u-1", objects.container("main", memory="20Gi", core=10))
    raw["metadata"]["labels"] = {words.LABEL_ISOLATION_PROVIDER: "hami-core"}
    memory = f"{Reason.MEMORY.text} (largest free slice 12 GiB of the 20 GiB requested)"
    texts = {
        **dict.fromkeys(("n0", "n1"), memory),
        "n2": Reason.GPU_TOO_SMALL.text,
        "n3": Reason.NOT_ISOLATING.text,
        "n4": Reason.NODE_UNKNOWN.text,
    }
    for nominated in ({}, {"n1": memory}, {"elsewhere": ""}):
        raw["status"] = {"nominatedNodeName": "".join(nominated)}
        assert filtered(Verbs(state), raw, [*names(4), "n4"]) == {
            "NodeNames": [],
            "FailedNodes": {name: nominated[name] for name in nominated if name in texts},
            "FailedAndUnresolvableNodes": {n: texts[n] for n in texts if n not in nominated},
        }


def test_a_request_that_is_refused_is_unresolvable_on_every_node_without_a_percent_sign() -> None:
    """kube-scheduler uses the text as a Go format, and would print `'50%!'(MISSING)`."""
    raw, verbs = calls.pod(annotations={words.ANNOTATION_POLICY: "50%"}), Verbs(calls.state())
    answer = filtered(verbs, raw, names(2))
    (text,) = set(answer["FailedAndUnresolvableNodes"].values())
    assert "invalid value '50\N{FULLWIDTH PERCENT SIGN}': must be" in text
    assert (answer["NodeNames"], len(answer["FailedAndUnresolvableNodes"])) == ([], 2)
    assert scored(verbs, raw, names(2)) == {}


def test_a_pod_without_a_share_may_be_placed_on_unknown_nodes_too() -> None:
    raw, verbs = calls.pod("u-1", objects.container("main")), Verbs(calls.state())
    for among in (["n0", "unknown"], []):
        assert filtered(verbs, raw, among) == {"NodeNames": among}
        assert scored(verbs, raw, among) == {}
    assert filtered(verbs, calls.pod(), [])["NodeNames"] == [], "no candidates are no error"
    assert scored(verbs, calls.pod(), []) == {}


def test_the_fuller_gpu_scores_more_and_spread_has_it_the_other_way() -> None:
    state = calls.state(nodes=3, gpus=1)
    bind(state, calls.pod("other"), "n1")
    assert scored(Verbs(state), calls.pod(), names(3)) == {"n0": 0, "n1": 10, "n2": 0}
    spread = Verbs(state, {"gpuslice-scheduler": Policy.SPREAD})
    assert scored(spread, calls.pod(), names(3)) == {"n0": 10, "n1": 0, "n2": 9}
    asks = calls.pod(annotations={words.ANNOTATION_POLICY: "binpack"})
    assert scored(spread, asks, names(3)) == {"n0": 0, "n1": 10, "n2": 0}


def test_gpus_that_are_held_for_the_pod_already_are_what_it_gets() -> None:
    """The outcome of the pod's Binding to n1 is unknown. While n1 is a usable candidate, the pod
    fits on no other node."""
    state, raw = calls.state(nodes=2, gpus=1), calls.pod("u-1", WHOLE)
    state.assume("u-1", Assumed(placed(state, raw, "n1"), {}, 30.0))
    verbs = Verbs(state)
    assert filtered(verbs, raw, names(2)) == {"NodeNames": ["n1"]}
    assert scored(verbs, raw, names(2)) == {"n0": 0, "n1": 10}
    assert filtered(verbs, calls.pod("u-2", WHOLE), names(2)) == {"NodeNames": ["n0"]}
    state.reservations.end("u-2")
    assert filtered(verbs, raw, ["n0"]) == {"NodeNames": ["n0"]}
    state.remove_lease("n1")
    assert filtered(verbs, raw, names(2)) == {"NodeNames": ["n0"]}


def test_a_pod_that_is_bound_is_an_error() -> None:
    state = calls.state()
    bind(state, calls.pod(), "n1")
    assert filtered(Verbs(state), calls.pod(), names(2)) == {"Error": "the pod is bound to n1"}


# --- preempt


def full() -> State:
    """Return a state with full GPUs: of two pods (60 and 40 percent) on n0, and of one on n1."""
    state = calls.state()
    for minor in range(2):
        for percent, name in ((60, "n0"), (40, "n0"), (100, "n1")):
            hold(state, f"{percent}-{minor}", name, minor, percent, priority=10 * (percent == 60))
    return state


def preempted(
    state: State, victims: Mapping[str, Sequence[str]], container: Mapping[str, Any] = HALF
) -> Any:
    return calls.preempted(Verbs(state), calls.pod("high", container, priority=9), victims)


BOTH_40, A_100 = {"n0": ["40-0", "40-1"]}, {"n1": ["100-0"]}


def test_victims_are_preempted_where_the_pod_fits_without_them() -> None:
    """Victims without a GPU stay in the answer, because the node may lack, for example, CPUs."""
    busy, both_100 = {"n0": ["busy"]}, {"n1": ["100-0", "100-1"]}
    for state, victims, container, kept in (
        (full(), {**BOTH_40, **A_100}, HALF, A_100),
        (full(), BOTH_40, objects.container("main"), BOTH_40),
        (full(), both_100, objects.container("main", gpu=150), {}),
        (calls.state(), busy, HALF, busy),
    ):
        assert preempted(state, victims, container) == calls.metas(kept)


def test_the_answer_to_preempt_has_the_format_of_go() -> None:
    body = calls.preemption(calls.pod("high", HALF, priority=9), A_100)
    assert b"".join(Verbs(full()).preempt(body)) == (
        b'{"NodeNameToMetaVictims":{"n1":{"Pods":[{"UID":"100-0"}],"NumPDBViolations":0}}}'
    )


def test_a_pod_that_has_gpus_preempts_on_their_node_alone() -> None:
    """The pod's Binding may have succeeded, so evictions on other nodes would not help."""
    state, victims = calls.state(gpus=1), {"n0": ["busy"], "n1": ["busier"]}
    state.assume("high", Assumed(placed(state, calls.pod("high", HALF), "n0"), {}, 9.0))
    assert preempted(state, victims) == calls.metas({"n0": ["busy"]})
    assert preempted(state, {"n1": ["busier"]}) == {}
    hold(state, "high", "n0", 0, 50)
    assert preempted(state, victims) == {}
