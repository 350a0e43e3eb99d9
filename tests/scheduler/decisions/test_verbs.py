"""filter and prioritize over a state."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from gpuslice.contract import names as words
from scheduler.core.fit import feasible
from scheduler.core.reasons import UNRESOLVABLE, Reason
from scheduler.core.request import Policy
from scheduler.core.score import best, score
from scheduler.decisions.state import Assumed
from scheduler.decisions.verbs import MAX_NODES, Verbs
from scheduler.kubernetes.requests import request
from scheduler.kubernetes.translate import device, node
from tests.scheduler import calls, objects
from tests.scheduler.calls import arguments, bind, names, placed


def filtered(verbs: Verbs, raw: dict[str, Any], among: list[str]) -> dict[str, Any]:
    answer = json.loads(verbs.filter(arguments(raw, among)))
    assert isinstance(answer, dict)
    return answer


def scored(verbs: Verbs, raw: dict[str, Any], among: list[str]) -> dict[str, int]:
    answer = json.loads(verbs.prioritize(arguments(raw, among)))
    return {each["Host"]: each["Score"] for each in answer}


WHOLE = objects.container("main", gpu=100)


def test_filter_names_the_best_of_any_number_of_candidates() -> None:
    """The fleet's best are searched instead of each node where most nodes are candidates."""
    chance = random.Random(7)
    for count in (40, 100, 300):
        state = calls.state(nodes=count, gpus=1)
        for number in range(count):
            percent = chance.choice((5, 10, 20, 50, 60))
            share = objects.container("main", core=percent, ratio=percent)
            bind(state, calls.pod(f"other-{number}", share), f"n{number}")
        fullness = {
            name: state.fleet.fullness[state.fleet.row_of(name), 0] for name in names(count)
        }
        best_first = sorted(names(count), key=lambda name: -fullness[name])
        for among in (
            names(count),
            chance.sample(names(count), count * 9 // 10),
            chance.sample(names(count), count * 6 // 10),
            best_first[count * 4 // 10 :],
            chance.sample(names(count), count * 3 // 10),
            [*names(count), "unknown", "unknown"],
        ):
            asked = request(calls.pod())
            assert asked is not None
            rows = state.fleet.rows_of(set(among) - {"unknown"})
            fitting = rows[feasible(state.fleet, asked, rows)]
            ranked = best(state.fleet, score(state.fleet, asked, fitting), fitting, MAX_NODES)
            wanted = {state.fleet.names[row] for row in fitting[ranked].tolist()}
            found = filtered(Verbs(state), calls.pod(), among)["NodeNames"]
            assert set(found) == wanted and len(found) == len(wanted)


PREFERRED = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}
REQUIRED: dict[str, Any] = {"requiredDuringSchedulingIgnoredDuringExecution": {}}


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"affinity": {"nodeAffinity": PREFERRED}}, 100),
        ({"affinity": {"podAffinity": PREFERRED}}, 100),
        ({"affinity": {"podAntiAffinity": PREFERRED}}, 100),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]}, 100),
        ({"affinity": None, "topologySpreadConstraints": None}, MAX_NODES),
        ({"affinity": {"nodeAffinity": REQUIRED}}, MAX_NODES),
        ({"affinity": {"podAffinity": None}}, MAX_NODES),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]}, MAX_NODES),
    ],
)
def test_all_are_named_where_the_pod_prefers_some_and_what_is_required_is_no_preference(
    spec: dict[str, Any], named: int
) -> None:
    raw = calls.pod()
    raw["spec"].update(spec)
    verbs = Verbs(calls.state(nodes=100, gpus=1))
    found = filtered(verbs, raw, names(100))
    assert len(found["NodeNames"]) == named
    assert set(filtered(verbs, raw, names(100)[::-1])["NodeNames"]) == set(found["NodeNames"])


def test_where_none_fits_each_node_has_its_reason_and_equal_ones_one_text() -> None:
    state = calls.state(nodes=4, gpus=1)
    for name in ("n0", "n1"):
        bind(state, calls.pod(f"on-{name}"), name)
    state.observe_device(device(objects.device("n2", objects.gpu("GPU-small", 0, "8Gi"))))
    state.observe_node(node(objects.node("n3", isolates=False)))
    raw = calls.pod("u-1", objects.container("main", memory="20Gi", core=10))
    raw["metadata"]["labels"] = {words.LABEL_ISOLATION_PROVIDER: "hami-core"}
    near = "largest free slice 12 GiB of the 20 GiB requested"
    assert filtered(Verbs(state), raw, [*names(4), "n4"]) == {
        "NodeNames": [],
        "FailedNodes": {
            "n0": f"{Reason.MEMORY.text} ({near})",
            "n1": f"{Reason.MEMORY.text} ({near})",
            "n4": Reason.NODE_UNKNOWN.text,
        },
        "FailedAndUnresolvableNodes": {
            "n2": Reason.GPU_TOO_SMALL.text,
            "n3": Reason.NOT_ISOLATING.text,
        },
    }
    assert {Reason.GPU_TOO_SMALL, Reason.NOT_ISOLATING} <= UNRESOLVABLE


def test_a_request_that_is_refused_is_unresolvable_on_every_node() -> None:
    raw = calls.pod("u-1", objects.container("main", gpu=150))
    answer = filtered(Verbs(calls.state()), raw, names(2))
    (text,) = set(answer["FailedAndUnresolvableNodes"].values())
    assert text.startswith("container main: koordinator.sh/gpu: invalid value 150")
    assert (answer["NodeNames"], len(answer["FailedAndUnresolvableNodes"])) == ([], 2)
    assert scored(Verbs(calls.state()), raw, names(2)) == {}


def test_a_refusal_has_no_percent_sign() -> None:
    """kube-scheduler uses it as a Go format: its Event would read `'50%!'(MISSING)`."""
    raw = calls.pod(annotations={words.ANNOTATION_POLICY: "50%"})
    refused = filtered(Verbs(calls.state()), raw, names(1))["FailedAndUnresolvableNodes"]["n0"]
    assert "invalid value '50\N{FULLWIDTH PERCENT SIGN}': must be" in refused


def test_a_pod_without_a_share_may_be_placed_on_unknown_nodes_too() -> None:
    raw = calls.pod("u-1", objects.container("main"))
    verbs = Verbs(calls.state())
    assert filtered(verbs, raw, ["n0", "unknown"]) == {"NodeNames": ["n0", "unknown"]}
    assert scored(verbs, raw, ["n0", "unknown"]) == {}


def test_no_candidates_is_no_error() -> None:
    verbs = Verbs(calls.state())
    assert filtered(verbs, calls.pod(), [])["NodeNames"] == []
    assert scored(verbs, calls.pod(), []) == {}


def test_the_fuller_gpu_scores_more_and_spread_has_it_the_other_way() -> None:
    state = calls.state(nodes=3, gpus=1)
    bind(state, calls.pod("other"), "n1")
    assert scored(Verbs(state), calls.pod(), names(3)) == {"n0": 0, "n1": 10, "n2": 0}
    spread = Verbs(state, {"gpuslice-scheduler": Policy.SPREAD})
    assert scored(spread, calls.pod(), names(3)) == {"n0": 10, "n1": 0, "n2": 10}
    asks = calls.pod(annotations={words.ANNOTATION_POLICY: "binpack"})
    assert scored(spread, asks, names(3)) == {"n0": 0, "n1": 10, "n2": 0}


# --- pods whose binding is in doubt


def test_gpus_that_are_held_for_the_pod_already_are_what_it_gets() -> None:
    """Its Binding was sent and the outcome is unknown: the last free capacity is its own."""
    state = calls.state(nodes=2, gpus=1)
    raw = calls.pod("u-1", WHOLE)
    state.assume("u-1", Assumed(placed(state, raw, "n1"), {}, 30.0))
    verbs = Verbs(state)
    assert filtered(verbs, raw, names(2)) == {"NodeNames": ["n1"]}
    assert scored(verbs, raw, names(2)) == {"n0": 0, "n1": 10}
    assert filtered(verbs, calls.pod("u-2", WHOLE), names(2)) == {"NodeNames": ["n0"]}


def test_where_that_node_may_not_be_used_any_more_others_are_named() -> None:
    state = calls.state(nodes=3, gpus=1)
    raw = calls.pod("u-1", WHOLE)
    state.assume("u-1", Assumed(placed(state, raw, "n1"), {}, 30.0))
    verbs = Verbs(state)
    assert filtered(verbs, raw, ["n0", "n2"]) == {"NodeNames": ["n0", "n2"]}
    state.remove_lease("n1")
    assert filtered(verbs, raw, names(3)) == {"NodeNames": ["n0", "n2"]}


def test_a_pod_that_is_bound_is_an_error() -> None:
    state = calls.state()
    bind(state, calls.pod(), "n1")
    answer = filtered(Verbs(state), calls.pod(), names(2))
    assert answer == {"Error": "the pod is bound to n1"}


# --- cached until bind


def test_scores_are_those_of_the_fleet_as_it_is_whatever_was_scored_before() -> None:
    """prioritize uses filter's scores while the fleet is unchanged."""
    state = calls.state(nodes=50, gpus=2)
    for number in range(50):
        bind(
            state,
            calls.pod(
                f"other-{number}", objects.container("main", core=number + 1, ratio=number + 1)
            ),
            f"n{number}",
        )
    verbs, raw = Verbs(state), calls.pod()

    def afresh(among: list[str]) -> dict[str, int]:
        state.reservations.end_overdue(float("inf"))
        return scored(Verbs(state), raw, among)

    among = filtered(verbs, raw, names(50))["NodeNames"]
    assert len(among) == MAX_NODES
    for some in (among, among[:5], [*among[:5], "n0"], ["n0", "unknown"]):
        assert scored(verbs, raw, some) == afresh(some)

    state.reservations.end_overdue(float("inf"))
    assert scored(verbs, calls.pod("another"), among) == afresh(among)
    filtered(verbs, raw, names(50))
    bind(state, calls.pod("more"), among[-1])
    assert scored(verbs, raw, among) == afresh(among)
    filtered(verbs, raw, names(50))
    state.remove_node(among[0])
    assert scored(verbs, raw, among[1:]) == afresh(among[1:])
