"""Fit over several nodes at once: what is bounded, and what is asked once."""

from __future__ import annotations

from scheduler.core.fit import MOST_STEPS_TOGETHER, feasible, fit
from scheduler.core.fleet import Fleet
from scheduler.core.reasons import Reason
from scheduler.core.request import Ask, Request
from scheduler.core.search import MOST_STEPS, Steps
from tests.scheduler.core.one_node import add, cards


def hard(fleet: Fleet, count: int, alike: bool) -> list[str]:
    """Nodes on which a search for `TOO_MANY` ends nowhere."""
    names = [f"n{number}" for number in range(count)]
    for number, name in enumerate(names):
        held = [[(minor + (0 if alike else number % 7), 1)] for minor in range(1, 17)]
        add(fleet, name, *held, of=cards(16))
    return names


TOO_MANY = Request(
    [
        *(Ask(f"c{n}", order=n, memory_bytes=516 + n) for n in range(16)),
        Ask("last", order=17, memory_bytes=501),
    ]
)


def test_nodes_that_are_alike_are_searched_once() -> None:
    fleet = Fleet()
    rows = fleet.rows_of(hard(fleet, 40, alike=True))
    steps = Steps(MOST_STEPS_TOGETHER)
    assert set(fit(fleet, TOO_MANY, rows, steps)[1]) == {Reason.GIVEN_UP}
    assert steps.taken == MOST_STEPS


def test_the_searches_of_all_nodes_are_bounded_together() -> None:
    """A pod that is hard to place on every node must not halt the scheduler."""
    fleet = Fleet()
    rows = fleet.rows_of(hard(fleet, 40, alike=False))
    steps = Steps(MOST_STEPS_TOGETHER)
    assert set(fit(fleet, TOO_MANY, rows, steps)[1]) == {Reason.GIVEN_UP}
    assert steps.taken == MOST_STEPS_TOGETHER
    assert not feasible(fleet, TOO_MANY, rows).any()


def test_easy_nodes_are_found_among_hard_ones() -> None:
    fleet = Fleet()
    names = hard(fleet, 10, alike=False)
    add(fleet, "easy", *[[] for _ in range(16)], of=cards(16, 2000))
    possible, reasons = fit(fleet, TOO_MANY, fleet.rows_of([*names, "easy"]))
    assert possible.tolist() == [False] * 10 + [True]
    assert reasons[-1] == Reason.FITS
