"""With 300 pods waiting that are hard to place, each call and each check of waiting pods takes a
bounded number of search steps, and all of them together do, too.

A step is some 30 us (scheduler/core/search.py), so these bounds keep the event loop free.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from scheduler.core.fit import FitCache
from scheduler.core.reasons import Reason
from scheduler.core.search import (
    MAX_A_CALL,
    MIN_A_CALL,
    PER_SECOND,
    Budget,
    Steps,
)
from scheduler.decisions.requeue import TIMEOUT_S, Unschedulable
from scheduler.decisions.state import State
from scheduler.decisions.verbs import Verbs
from tests.scheduler import calls, objects
from tests.scheduler.core.one_node import add, gpus
from tests.scheduler.core.test_fit import hard

PODS = 300


class Counted(Budget):
    """Lists the steps that each caller took."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[int] = []

    @contextmanager
    def steps(self, at_most: int = MAX_A_CALL, at_least: int = MIN_A_CALL) -> Iterator[Steps]:
        with super().steps(at_most, at_least) as given:
            yield given
        self.taken.append(given.taken)

    @contextmanager
    def queue_steps(self) -> Iterator[Steps]:
        with super().queue_steps() as given:
            yield given
        self.taken.append(given.taken)


def hard_pod(number: int, names: list[str]) -> bytes:
    """17 containers, each for more than half of one of 16 GPUs; no two pods have one shape."""
    sizes = [516 + number + n for n in range(16)] + [501]
    asks = [objects.container(f"c{n}", core=1, memory=str(size)) for n, size in enumerate(sizes)]
    return calls.arguments(calls.pod(f"hard-{number}", *asks), names)


def test_300_hard_pods_that_wait_take_bounded_steps() -> None:
    state = State()
    state.budget = budget = Counted()
    names = hard(state.fleet, 12, alike=False)
    queue = Unschedulable(state)
    verbs = Verbs(state, retries=queue)
    for number in range(PODS):
        answer = calls.loads(verbs.filter(hard_pod(number, names)))
        assert not answer["NodeNames"]
    assert len(queue) == PODS
    assert len(budget.taken) == PODS
    assert max(budget.taken) == MAX_A_CALL, "the pods are hard"
    assert sum(budget.taken) <= PER_SECOND + PODS * MIN_A_CALL
    for second in range(1, 2 * int(TIMEOUT_S)):
        budget.taken.clear()
        state.tick(float(second))
        for name in names:
            state.fleet.note_freed(state.fleet.row_of(name))
        while not queue.work(float(second), lambda: True):
            pass
        assert max(budget.taken, default=0) <= MAX_A_CALL
        assert sum(budget.taken) <= PER_SECOND
    assert len(budget.taken) == PODS, "each entry had its turn"
    assert queue.due() == []


def test_the_searches_of_waiting_pods_come_to_an_end() -> None:
    """Where nothing changes any more, each node is searched once for each pod, and then no step is
    taken: the budget is there for others."""
    state = State()
    state.budget = budget = Counted()
    names = hard(state.fleet, 3, alike=False)
    queue = Unschedulable(state)
    verbs = Verbs(state, retries=queue)
    for number in range(20):
        verbs.filter(hard_pod(number, names))
    hard(state.fleet, 3, alike=False)
    for name in names:
        state.fleet.note_freed(state.fleet.row_of(name))
    for second in range(100, 120):
        budget.taken.clear()
        state.tick(float(second))
        queue.work(float(second), lambda: False)
    assert sum(budget.taken) == 0


def test_pods_that_no_longer_fit_leave_the_event_loop_free() -> None:
    """Capacity came for many, and is used before they are requeued."""
    state = State()
    names = hard(state.fleet, 3, alike=False)
    queue = Unschedulable(state)
    verbs = Verbs(state, retries=queue)
    for number in range(10):
        verbs.filter(hard_pod(number, names))
        state.tick(float(number))
    for name in names:
        add(state.fleet, name, of=gpus(16, 4000))
        state.fleet.note_freed(state.fleet.row_of(name))
    for second in (100.0, 106.0):
        state.tick(second)
        queue.work(second, lambda: False)
    hard(state.fleet, 3, alike=False)
    assert queue._ready
    looks = 0
    while queue._ready and looks < 300:
        looks += 1
        state.tick(106.0 + looks)
        once = iter((False, True))
        assert queue.due(once.__next__) == []
    assert not queue._ready


def test_constant_hard_filters_leave_the_queue_steps_for_each_of_its_entries() -> None:
    """One tenant's pods take all shared steps each second; others wait in the queue, each for
    another shape, and the last one fits."""
    state = State()
    names = hard(state.fleet, 3, alike=False)
    queue = Unschedulable(state)
    verbs = Verbs(state, retries=queue)
    for number in range(10):
        verbs.filter(hard_pod(number, names))
    fits = calls.pod("fits", *(objects.container(f"c{n}", core=1, memory="400") for n in range(17)))
    for name in names:
        state.fleet.set_node(state.fleet.row_of(name), Reason.AGENT_LEASE_EXPIRED, True)
    assert not calls.loads(verbs.filter(calls.arguments(fits, names)))["NodeNames"]
    for name in names:
        state.fleet.set_node(state.fleet.row_of(name), Reason.FITS, True)
    rows, due = state.fleet.rows_of(names), []
    searched: set[object] = set()
    for second in range(100, 160):
        state.tick(float(second))
        for name in names:
            state.fleet.note_freed(state.fleet.row_of(name))
        state.known = FitCache()  # as if their GPUs had changed, too
        with state.budget.steps(PER_SECOND) as drained:
            drained.taken = PER_SECOND
        queue.work(float(second), lambda: False)
        due += [pending.uid for pending in queue.due()]
        for shape, found in state.known._found.items():
            is_new = found.versions[rows] == state.fleet.version[rows]
            if (is_new & (found.reasons[rows] == Reason.GIVEN_UP)).any():
                searched.add(shape)
    assert set(due) == {"fits"}
    assert len(searched) == 10, "in turn, though the nodes change all the time"
