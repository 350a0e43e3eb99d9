"""`fit` over several nodes: bounds, and caching of results."""

from __future__ import annotations

from dataclasses import replace

from scheduler.core.fit import MAX_STEPS, FitCache, fit
from scheduler.core.fleet import Fleet
from scheduler.core.reasons import Reason
from scheduler.core.request import ContainerRequest, Request
from scheduler.core.search import MOST_STEPS, Steps
from tests.scheduler.core.one_node import add, gpus


def hard(fleet: Fleet, count: int, alike: bool) -> list[str]:
    """Nodes on which a search for `TOO_MANY` gives up."""
    names = [f"n{number}" for number in range(count)]
    for number, name in enumerate(names):
        held = [[(minor + (0 if alike else number % 7), 1)] for minor in range(1, 17)]
        add(fleet, name, *held, of=gpus(16))
    return names


TOO_MANY = Request(
    [
        *(ContainerRequest(f"c{n}", order=n, memory_bytes=516 + n) for n in range(16)),
        ContainerRequest("last", order=17, memory_bytes=501),
    ]
)


def test_nodes_that_are_alike_are_searched_once() -> None:
    fleet = Fleet()
    rows = fleet.rows_of(hard(fleet, 40, alike=True))
    steps = Steps(MAX_STEPS)
    assert set(fit(fleet, TOO_MANY, rows, steps)[1]) == {Reason.GIVEN_UP}
    assert MOST_STEPS <= steps.taken < 2 * MOST_STEPS


def test_a_call_takes_its_steps_at_most_and_the_next_one_continues() -> None:
    """A pod that is hard to place on every node must not block the scheduler."""
    fleet, known = Fleet(), FitCache()
    rows = fleet.rows_of(hard(fleet, 40, alike=False))
    reached = []
    for _ in range(12):
        steps = Steps(MOST_STEPS + 60)
        reasons = fit(fleet, TOO_MANY, rows, steps, known)[1]
        assert steps.taken <= steps.most
        assert set(reasons) <= {Reason.GIVEN_UP, Reason.UNFINISHED}
        reached.append(int((reasons == Reason.GIVEN_UP).sum()))
    assert reached == sorted(reached)
    assert (reached[0], reached[-1]) == (1, 40)
    nothing = Steps(0)
    assert set(fit(fleet, TOO_MANY, rows, nothing, known)[1]) == {Reason.GIVEN_UP}


def test_a_nodes_cached_result_holds_until_the_node_changes() -> None:
    fleet, known = Fleet(), FitCache()
    rows = fleet.rows_of(hard(fleet, 2, alike=True))
    fit(fleet, TOO_MANY, rows, Steps(MAX_STEPS), known)
    for slot in range(16):
        fleet.release(int(rows[1]), slot, slot + 1, 1)
    renamed = replace(
        TOO_MANY, containers=[replace(container, name="x") for container in TOO_MANY.containers]
    )
    for steps, expected in ((Steps(0), Reason.UNFINISHED), (Steps(MAX_STEPS), Reason.TOGETHER)):
        reasons = fit(fleet, renamed, rows, steps, known)[1]
        assert reasons.tolist() == [Reason.GIVEN_UP, expected]


def test_easy_nodes_are_found_among_hard_ones() -> None:
    fleet = Fleet()
    names = hard(fleet, 10, alike=False)
    add(fleet, "easy", *[[] for _ in range(16)], of=gpus(16, 2000))
    possible, reasons = fit(fleet, TOO_MANY, fleet.rows_of([*names, "easy"]))
    assert possible.tolist() == [False] * 10 + [True]
    assert reasons[-1] == Reason.FITS
