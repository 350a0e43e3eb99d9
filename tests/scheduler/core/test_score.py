"""Node scores: their order, and the best of many nodes."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from scheduler.core.fleet import Fleet, Gpu
from scheduler.core.request import ContainerRequest, Policy, Request
from scheduler.core.score import best, levels, score
from tests.scheduler.core.one_node import Held, add

HALF = ContainerRequest("main", core_percent=50, memory_ratio=Fraction(1, 2))
TENTH = ContainerRequest("main", memory_ratio=Fraction(1, 10))
SIZE = ContainerRequest("main", core_percent=50, memory_bytes=1000)
Node = list[list[Held]]
NODES: dict[str, Node] = {
    "empty": [[], []],
    "used": [[(200, 20)], []],
    "fuller": [[(500, 50)], []],
    "whole": [[(1000, 100)], []],
    "behind": [[], [(800, 20)]],
    "at once": [[(100, 20)], []],
}


def order(fleet: Fleet, asked: ContainerRequest, policy: Policy | None = None) -> list[str]:
    """Return the names of the nodes, best first. No two scores are equal."""
    rows = fleet.all_rows()
    scores = score(fleet, Request([asked], policy), rows)
    assert len(set(scores)) == len(scores), scores
    return [fleet.names[rows[index]] for index in best(fleet, scores, rows, len(rows))]


@pytest.mark.parametrize(
    ("asked", "policy", "expected"),
    [
        (HALF, Policy.BINPACK, ["fuller", "used", "whole", "empty"]),
        (HALF, Policy.SPREAD, ["empty", "used", "fuller", "whole"]),
        (TENTH, Policy.BINPACK, ["behind", "at once"]),
        (TENTH, Policy.FIRST, ["at once", "behind"]),
    ],
    ids=["gpus are filled, then nodes", "spread", "the fullest GPU", "the lowest minor"],
)
def test_a_node_ranks_by_the_gpus_that_the_policy_takes(
    asked: ContainerRequest, policy: Policy, expected: list[str]
) -> None:
    fleet = Fleet()
    for name in reversed(expected):
        add(fleet, name, *NODES[name])
    assert order(fleet, asked, policy) == expected


@pytest.mark.parametrize(
    ("used", "expected"),
    [([], ["small", "large"]), ([(1, 0)], ["large", "small"])],
    ids=["both are empty", "the large one is in use"],
)
def test_the_better_fit_after_gpus_in_use(used: list[Held], expected: list[str]) -> None:
    """Binpack prefers a GPU in use to an unused GPU, also on another node."""
    fleet = add(Fleet(), "large", used, of=[Gpu("GPU-large", 0, 8000)])
    add(fleet, "small", [], of=[Gpu("GPU-small", 0, 1000)])
    assert order(fleet, SIZE) == expected


@pytest.mark.parametrize(
    ("asked", "totals", "policy", "expected"),
    [
        (HALF, (1000, 1000), Policy.BINPACK, 0.5 + 0.4 * 0.7 + 0.005),
        (HALF, (1000, 1000), Policy.SPREAD, 0.9 * 0.5 + 0.095),
        (TENTH, (1000, 1000), Policy.BINPACK, 0.5 + 0.4 * 0.25 + 0.005),
        (SIZE, (2000, 2000), Policy.BINPACK, 0.5 + 0.4 * 0.65 + 0.00375),
        (SIZE, (2000, 5000), Policy.SPREAD, 0.9 * 0.65 + 0.09625),
        (replace(TENTH, gpus=2), (1000, 1000), Policy.BINPACK, 0.5 * (0.25 + 0.4 * 0.15 + 0.005)),
    ],
)
def test_a_score_weighs_the_gpus_in_use_their_fullness_and_the_nodes(
    asked: ContainerRequest, totals: tuple[int, int], policy: Policy, expected: float
) -> None:
    """`gpuslice simulate` prints the score of a node. Here 200 bytes and 20 percent are held of
    the first of two GPUs, and a node of the fleet may have four."""
    of = [Gpu(f"GPU-{minor}", minor, total) for minor, total in enumerate(totals)]
    fleet = add(Fleet(gpus=4), "n1", [(200, 20)], [], of=of)
    found = score(fleet, Request([asked], policy), fleet.all_rows())
    assert found == pytest.approx(expected)


def test_several_gpus_are_better_the_nearer_they_lie() -> None:
    fleet, expected = Fleet(), ["link", "root", "numa", "far"]
    for name, pair in {
        "far": [Gpu("GPU-0", 0, 1000, numa=0), Gpu("GPU-1", 1, 1000, numa=1)],
        "numa": [Gpu(f"GPU-{n}", n, 1000, numa=0, root=f"{n}") for n in (0, 1)],
        "root": [Gpu(f"GPU-{n}", n, 1000, root="a", link=f"{n}") for n in (0, 1)],
        "link": [Gpu(f"GPU-{n}", n, 1000, link="x") for n in (0, 1)],
    }.items():
        add(fleet, name, [], [], of=pair)
    for policy in Policy:
        pair_of_halves = ContainerRequest("main", gpus=2, memory_ratio=Fraction(1, 2))
        assert order(fleet, pair_of_halves, policy) == expected


def test_the_best_of_many_are_those_of_a_sort_whatever_the_order_of_the_names() -> None:
    """Ties are broken by name, so that the same fleet always gives the same choice."""
    chance = random.Random(5)
    for _ in range(200):
        count, most = chance.randint(1, 40), chance.randint(1, 40)
        points = {f"n{number}": float(chance.randint(0, 3)) for number in range(count)}
        fleet = Fleet()
        for name in chance.sample(list(points), count):
            add(fleet, name, [])
        chosen: list[list[str]] = []
        for asked in (list(points), chance.sample(list(points), count)):
            scores = np.array([points[name] for name in asked])
            indices = best(fleet, scores, fleet.rows_of(asked), most)
            chosen.append([asked[index] for index in indices])
        found, again = chosen
        assert found == again
        assert len(found) == min(most, count)
        ranked = sorted(points.values(), reverse=True)
        assert [points[name] for name in found] == ranked[: len(found)]


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([], []),
        ([0.3], [10]),
        ([0.3, 0.3], [10, 9]),
        ([0.1, 0.2, 0.3], [0, 5, 10]),
        ([0.9, 0.0, 0.899, 0.9], [10, 0, 9, 9]),
    ],
)
def test_levels(scores: list[float], expected: list[int]) -> None:
    assert levels(np.array(scores, np.float64)).tolist() == expected


def test_the_levels_of_equal_scores_are_equal_where_the_pods_preferences_decide() -> None:
    assert levels([0.9, 0.0, 0.9], one_best=False).tolist() == [10, 0, 10]
