"""The translation of Queues to Kueue's objects."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from gpuslice.contract import names
from scheduler.queues import kueue, tree
from tests.queues.examples import EXAMPLES, SCALED, Example
from tests.queues.kai import UNLIMITED, Q
from tests.queues.trees import random_tree

Json = dict[str, Any]


def divided(queues: Sequence[Q], gpus: int) -> tree.Queues:
    built = tree.build(queue.raw() for queue in queues)
    kueue.divide(built, gpus * tree.MILLI)
    return built


def translated(queues: Sequence[Q], gpus: int) -> dict[tuple[str, str], Json]:
    made = kueue.objects(divided(queues, gpus))
    return {(each["kind"], each["metadata"]["name"]): each["spec"] for each in made}


def quota(spec: Json) -> Json:
    (resource,) = spec["resourceGroups"][0]["flavors"][0]["resources"]
    assert resource["name"] == names.RESOURCE_MILLI
    return {key: int(value) for key, value in resource.items() if key != "name"}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: each.title)
def test_each_example_guarantees_its_quotas(example: Example) -> None:
    served = [*divided(example.queues, example.gpus)[""].tree()]
    found = {each.name: each.guaranteed for each in served if each.guaranteed}
    assert found == example.guaranteed
    assert any(map(kueue.is_cut, served)) == (example.title in SCALED)


def test_quotas_add_up_to_the_capacity() -> None:
    for seed in range(200):
        drawn = random.Random(seed)
        queues, gpus = random_tree(drawn, fits=bool(seed % 2)), drawn.randrange(0, 30)
        specs = translated(queues, gpus).values()
        nominal = [quota(spec)["nominalQuota"] for spec in specs if "resourceGroups" in spec]
        assert sum(nominal) == gpus * tree.MILLI, seed
        assert min(nominal) >= 0, seed


def test_the_rest_of_rounding_stays_with_the_parent() -> None:
    queues = [Q("p", 2), *(Q(name, 1, parent="p") for name in "abc")]
    found = divided(queues, 2)
    assert (found["p"].guaranteed, found["p"].own, found[""].own) == (2000, 2, 0)
    found = divided([Q(name, 0.667) for name in "abc"], 2)
    assert [found[name].guaranteed for name in "abc"] == [666, 666, 666]
    assert not any(map(kueue.is_cut, found[""].tree())), "less by rounding only"
    assert found[""].own == 2


def test_a_quota_of_all_is_cut_below_what_the_parent_has() -> None:
    found = divided([Q("p", 4), Q("a", UNLIMITED, parent="p"), Q("all", UNLIMITED)], 10)
    assert [kueue.is_cut(found[name]) for name in ("p", "a", "all")] == [True, False, True]
    (said,) = kueue.notes(found["all"])
    assert said.message == (
        "spec.resources.gpu.quota: -1 does not fit the parent or the cluster: 7.142 is guaranteed"
    )


def test_a_cluster_queue_that_no_leaf_has_is_held_while_it_has_pods() -> None:
    queues = [Q("p", 3), Q("q", 2, parent="p"), Q("lost", parent="gone"), Q("last", parent="lost")]
    made = kueue.objects(before := divided(queues, 4))
    there = [each for each in made if each["kind"] == "ClusterQueue"]
    assert kueue.held(before, there, {"q"}) == {}
    grown = divided([*queues, Q("r", 1, parent="q")], 4)
    others = ("lost", "removed", "ended")
    there += [{**there[0], "metadata": {"name": name}} for name in others]
    kept = kueue.held(grown, there, {"q", "lost", "removed"})
    assert kept == {"q": "q", "lost": "p", "removed": "p", "ended": "p"}
    specs = {e["metadata"]["name"]: e for e in kueue.objects(grown, (), kept)}
    assert [quota(specs[name]["spec"])["nominalQuota"] for name in kept] == [0, 0, 0, 0]
    held = [specs[name] for name in kept]
    kept = kueue.held(grown, held, {"q", "lost", "removed"})
    assert "ended" not in kept, "it was held, and is empty"
    assert kueue.held(divided([Q("r")], 4), held, {"removed"}) == {"removed": ""}
    assert specs["removed"]["spec"]["cohortName"] == "p"


def test_quotas_that_fit_are_not_cut() -> None:
    for seed in range(50):
        drawn = random.Random(seed)
        queues = random_tree(drawn, fits=True)
        gpus = int(sum(queue.quota for queue in queues if not queue.parent)) + drawn.randrange(5)
        served = divided(queues, gpus)
        assert {q.name: served[q.name].guaranteed for q in queues} == {
            q.name: q.quota * tree.MILLI for q in queues
        }, seed


def test_an_inner_queue_is_a_cohort_and_a_leaf_a_cluster_queue() -> None:
    queues = [Q("p", 3, 5), Q("a", 1, 2, 4, parent="p"), Q("b", parent="p", weight=0.25)]
    specs = translated(queues, 10)
    assert [*specs] == [
        ("ResourceFlavor", "gpuslice"),
        *(("Cohort", "gpuslice-root"), ("Cohort", "p")),
        *(("ClusterQueue", "a"), ("ClusterQueue", "b")),
    ]
    assert quota(specs["Cohort", "gpuslice-root"]) == {"nominalQuota": 7000}
    assert quota(specs["Cohort", "p"]) == {"nominalQuota": 2000, "borrowingLimit": 2000}
    assert quota(specs["ClusterQueue", "a"]) == {"nominalQuota": 1000, "borrowingLimit": 1000}
    assert quota(specs["ClusterQueue", "b"]) == {"nominalQuota": 0}
    assert specs["Cohort", "p"]["parentName"] == "gpuslice-root"
    assert specs["ClusterQueue", "a"]["cohortName"] == "p"
    assert specs["ClusterQueue", "a"]["fairSharing"] == {"weight": "4"}
    assert specs["ClusterQueue", "b"]["fairSharing"] == {"weight": "0.25"}


def test_local_queues_are_made_of_leaves_only() -> None:
    built = divided([Q("p"), Q("a", parent="p"), Q("lost", parent="nowhere")], 1)
    wanted = [("team", "a"), ("team", "p"), ("team", "lost"), ("team", "unknown")]
    made = kueue.objects(built, wanted)
    local = [each for each in made if each["kind"] == "LocalQueue"]
    assert [(e["metadata"]["namespace"], e["metadata"]["name"], e["spec"]) for e in local] == [
        ("team", "a", {"clusterQueue": "a"})
    ]


@pytest.mark.parametrize(
    ("queue", "guaranteed", "most"),
    [
        (Q("a", 2, weight=0), 2000, 2000),
        (Q("a", 4, 3), 3000, 3000),
        (Q("a", 0, 0), 0, 0),
        (Q("a", UNLIMITED, 3), 3000, 3000),
        (Q("a", 0.3), 300, None),
        (Q("a", 20), 10000, None),
    ],
)
def test_a_limit_bounds_what_a_queue_may_use(queue: Q, guaranteed: int, most: int | None) -> None:
    found = divided([queue], 10)["a"]
    assert (found.guaranteed, found.most) == (guaranteed, most)
    assert kueue.is_cut(found) == (queue.quota == 20)


def test_children_never_guarantee_more_than_their_parents_limit() -> None:
    queues = [Q("p", 0, 4), Q("a", 4, parent="p"), Q("b", 4, parent="p")]
    shares = divided(queues, 100)
    assert [shares[name].guaranteed for name in "pab"] == [4000, 2000, 2000]
    assert shares["p"].most == 4000


def test_a_higher_priority_outweighs_lower_ones_of_its_siblings() -> None:
    queues = [Q("p"), *(Q(f"q{each}", priority=each, parent="p", weight=2) for each in range(8))]
    shares = divided(queues, 1)
    weights = [shares[f"q{each}"].fair_weight for each in range(8)]
    assert weights == [2, 2, 2, 2e3, 2e6, 2e9, 2e12, 2e15]
    assert shares["p"].fair_weight == 1
