"""`fit` over several nodes."""

from __future__ import annotations

from scheduler.core.fit import MAX_CELLS, feasible, fit, max_rows
from scheduler.core.fleet import Fleet
from scheduler.core.reasons import Reason
from scheduler.core.request import ContainerRequest, Request
from tests.scheduler.core.one_node import add, gpus


def hard(fleet: Fleet, count: int) -> list[str]:
    """Nodes whose GPUs together have room for `TOO_MANY`, which fits on none of them."""
    names = [f"n{number}" for number in range(count)]
    for number, name in enumerate(names):
        held = [[(minor + number % 7, 1)] for minor in range(1, 17)]
        add(fleet, name, *held, of=gpus(16))
    return names


TOO_MANY = Request(
    [
        *(ContainerRequest(f"c{n}", order=n, memory_bytes=516 + n) for n in range(16)),
        ContainerRequest("last", order=17, memory_bytes=501),
    ]
)
"""Each for more than half of a GPU, and one more than there are GPUs."""


def test_a_node_that_fits_is_found_among_others() -> None:
    fleet = Fleet()
    names = hard(fleet, 10)
    add(fleet, "easy", *[[] for _ in range(16)], of=gpus(16, 2000))
    rows = fleet.rows_of([*names, "easy"])
    possible, reasons = fit(fleet, TOO_MANY, rows)
    assert possible.tolist() == feasible(fleet, TOO_MANY, rows).tolist() == [False] * 10 + [True]
    assert reasons.tolist() == [Reason.TOGETHER] * 10 + [Reason.FITS]


def test_more_containers_are_examined_on_fewer_nodes_at_once() -> None:
    assert max_rows(TOO_MANY) == MAX_CELLS // 17
    assert max_rows(Request([TOO_MANY.containers[0]])) == MAX_CELLS
