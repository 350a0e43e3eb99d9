"""Node scores: their order, and the best of many."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest

from scheduler.core.fleet import Fleet, Gpu
from scheduler.core.request import ContainerRequest, Policy, Request
from scheduler.core.score import best, levels, score
from tests.scheduler.core.one_node import Held, add

HALF = Request([ContainerRequest("main", core_percent=50, memory_ratio=Fraction(1, 2))])
SPREAD = Request(HALF.containers, Policy.SPREAD)


def order(
    request: Request, *nodes: tuple[str, list[list[Held]]], of: Sequence[Gpu] | None = None
) -> list[str]:
    """Names, best first."""
    fleet = Fleet()
    for name, held in nodes:
        add(fleet, name, *held, of=of)
    rows = fleet.rows_of([name for name, _ in nodes])
    scores = score(fleet, request, rows)
    assert len(set(scores)) == len(scores), scores
    return [fleet.names[rows[index]] for index in best(fleet, scores, rows, len(rows))]


EMPTY: tuple[str, list[list[Held]]] = ("empty", [[], []])
USED: tuple[str, list[list[Held]]] = ("used", [[(200, 20)], []])
FULLER: tuple[str, list[list[Held]]] = ("fuller", [[(500, 50)], []])
WHOLE: tuple[str, list[list[Held]]] = ("whole", [[(1000, 100)], []])


def test_binpack_first_fills_gpus_then_nodes() -> None:
    assert order(HALF, EMPTY, WHOLE, USED, FULLER) == ["fuller", "used", "whole", "empty"]


def test_spread_has_the_opposite() -> None:
    assert order(SPREAD, FULLER, WHOLE, USED, EMPTY) == ["empty", "used", "fuller", "whole"]


def test_first_ranks_by_the_gpus_with_the_lowest_minors() -> None:
    """Not by the fuller GPU, on which it would not place."""
    tenth = Request([ContainerRequest("main", memory_ratio=Fraction(1, 10))], Policy.FIRST)
    behind: tuple[str, list[list[Held]]] = ("behind", [[], [(800, 20)]])
    at_once: tuple[str, list[list[Held]]] = ("at once", [[(100, 20)], []])
    assert order(tenth, behind, at_once) == ["at once", "behind"]
    assert order(Request(tenth.containers), behind, at_once) == ["behind", "at once"]


def test_the_better_fit_of_empty_gpus() -> None:
    fleet = Fleet()
    for name, total in (("large", 4000), ("small", 1000)):
        add(fleet, name, [], of=[Gpu(f"GPU-{name}", 0, total)])
    rows = fleet.rows_of(["large", "small"])
    request = Request([ContainerRequest("main", memory_bytes=500)])
    assert score(fleet, request, rows).argmax() == 1


def test_a_gpu_in_use_is_better_than_an_empty_one_that_fits_better() -> None:
    """Whole GPUs stay free, across nodes as on one node."""
    fleet = Fleet()
    add(fleet, "large", [(1, 0)], of=[Gpu("GPU-large", 0, 8000)])
    add(fleet, "small", [], of=[Gpu("GPU-small", 0, 1000)])
    rows = fleet.rows_of(["large", "small"])
    request = Request([ContainerRequest("main", core_percent=50, memory_bytes=1000)])
    assert score(fleet, request, rows).argmax() == 0


def test_several_gpus_are_better_the_nearer_they_lie() -> None:
    fleet = Fleet()
    near: dict[str, list[dict[str, str | int]]] = {
        "far": [{"numa": 0}, {"numa": 1}],
        "numa": [{"numa": 0, "root": "a"}, {"numa": 0, "root": "b"}],
        "root": [{"root": "a", "link": "x"}, {"root": "a", "link": "y"}],
        "link": [{"link": "x"}, {"link": "x"}],
    }
    for name, places in near.items():
        of = [
            Gpu(f"GPU-{name}-{minor}", minor, 1000, **at)  # type: ignore[arg-type]
            for minor, at in enumerate(places)
        ]
        add(fleet, name, [], [], of=of)
    rows = fleet.rows_of(near)
    for policy in Policy:
        request = Request([ContainerRequest("main", gpus=2, memory_ratio=Fraction(1, 2))], policy)
        assert score(fleet, request, rows).argsort().tolist() == [0, 1, 2, 3]


def test_the_best_of_many_are_those_of_a_sort_whatever_the_order_of_the_names() -> None:
    """Ties are broken by name, so equal fleets give equal choices."""
    chance = random.Random(5)
    for _ in range(200):
        count, most = chance.randint(1, 40), chance.randint(1, 40)
        names = [f"n{number}" for number in range(count)]
        fleet = Fleet()
        for name in chance.sample(names, count):
            add(fleet, name, [])
        points = {name: float(chance.randint(0, 3)) for name in names}

        def chosen(asked: list[str], fleet: Fleet = fleet, most: int = most) -> list[str]:
            rows = fleet.rows_of(asked)
            scores = np.array([points[name] for name in asked])  # noqa: B023
            return [asked[index] for index in best(fleet, scores, rows, most)]

        found = chosen(names)
        assert found == chosen(chance.sample(names, count))
        assert len(found) == min(most, count)
        taken = sorted((points[name] for name in found), reverse=True)
        assert [points[name] for name in found] == taken
        assert taken == sorted(points.values(), reverse=True)[: len(found)]


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([], []),
        ([0.3], [10]),
        ([0.3, 0.3], [10, 10]),
        ([0.1, 0.2, 0.3], [0, 5, 10]),
        ([0.9, 0.0, 0.899, 0.9], [10, 0, 9, 10]),
    ],
)
def test_levels(scores: list[float], expected: list[int]) -> None:
    assert levels(np.array(scores, np.float64)).tolist() == expected
