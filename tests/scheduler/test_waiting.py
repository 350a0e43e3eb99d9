"""Who is to be tried again: those that were refused, fit now, and were not asked for since."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler import waiting
from scheduler.state import State
from scheduler.translate import device, lease, node
from scheduler.verbs import Verbs
from scheduler.waiting import AT_ONCE, PATIENCE_S, Waiting
from tests.scheduler import calls, objects
from tests.scheduler.calls import arguments, names
from tests.scheduler.test_verbs import WHOLE, bound


class Refusing:
    """One card, held by the pod `holder`. looked_s: the time, by the looks at who is overdue."""

    def __init__(self) -> None:
        self.state = calls.state(nodes=1, cards=1)
        self.waiting = Waiting(self.state)
        self.verbs = Verbs(self.state, waiting=self.waiting)
        self.now_s = 1000.0
        bound(self.state, calls.pod("holder", WHOLE), "n0")

    def ask(self, uid: str, **fields: Any) -> bytes:
        raw = calls.pod(uid)
        raw["spec"].update(fields)
        return self.verbs.filter(arguments(raw, names(1)))

    def overdue(self, after_s: float = 0.0) -> list[str]:
        """Looked at now, and again after so long: the UIDs of the second look."""
        self.waiting.overdue(self.now_s)
        self.now_s += after_s
        return [asked.uid for asked in self.waiting.overdue(self.now_s)]

    def free(self) -> None:
        self.state.lose_pod("holder")


@pytest.fixture
def refusing() -> Refusing:
    made = Refusing()
    made.ask("waits")
    return made


def test_nobody_is_tried_again_while_there_is_no_room(refusing: Refusing) -> None:
    assert refusing.overdue(after_s=100.0) == []


def test_who_fits_now_is_tried_again_once_kube_scheduler_has_had_its_time(
    refusing: Refusing,
) -> None:
    refusing.free()
    assert refusing.overdue(after_s=PATIENCE_S - 0.1) == []
    assert refusing.overdue(after_s=0.1) == ["waits"]


def test_it_is_told_once_of_the_same_room(refusing: Refusing) -> None:
    refusing.free()
    assert refusing.overdue(after_s=PATIENCE_S) == ["waits"]
    assert refusing.overdue(after_s=100.0) == []
    bound(refusing.state, calls.pod("holder", WHOLE), "n0")
    refusing.free()
    assert refusing.overdue(after_s=PATIENCE_S) == ["waits"]


def test_who_was_asked_for_since_is_not(refusing: Refusing) -> None:
    refusing.free()
    refusing.ask("waits")
    assert refusing.overdue(after_s=100.0) == []


def test_room_for_others_alone_wakes_nobody(refusing: Refusing) -> None:
    """Something left; what is there still does not do."""
    state = refusing.state
    bound_small = calls.pod("small", objects.container("main", core=60, ratio=60))
    refusing.free()
    bound(state, bound_small, "n0")
    assert refusing.overdue(after_s=PATIENCE_S) == []


def test_room_that_another_is_only_expected_to_take_is_room(refusing: Refusing) -> None:
    """What ends by itself is no change that anybody would be woken for."""
    refusing.free()
    other = arguments(calls.pod("expected", WHOLE), names(1))
    refusing.verbs.filter(other)
    refusing.verbs.prioritize(other)
    assert refusing.overdue(after_s=PATIENCE_S) == ["waits"]


def test_a_node_whose_agent_is_ready_again_is_room() -> None:
    refusing = Refusing()
    refusing.free()
    unready = lease(objects.lease("n0", ready="no library"))
    ready = lease(objects.lease("n0"))
    assert unready is not None
    assert ready is not None
    refusing.state.see_lease(unready, 1.0)
    refusing.ask("waits")
    assert refusing.overdue(after_s=100.0) == []
    refusing.state.see_lease(ready, 2.0)
    assert refusing.overdue(after_s=PATIENCE_S) == ["waits"]


def test_a_node_that_comes_is_room(refusing: Refusing) -> None:
    state: State = refusing.state
    state.see_node(node(objects.node("n1")))
    state.see_device(device(objects.device("n1", objects.card("GPU-n1-0", 0, "24Gi"))))
    facts = lease(objects.lease("n1"))
    assert facts is not None
    state.see_lease(facts, 0.0)
    assert refusing.overdue(after_s=PATIENCE_S) == ["waits"]


def test_important_ones_come_first_and_few_at_a_time() -> None:
    refusing = Refusing()
    for number in range(AT_ONCE):
        refusing.ask(f"low-{number}")
    refusing.ask("high", priority=1000)
    refusing.free()
    first = refusing.overdue(after_s=PATIENCE_S)
    assert first == ["high", *(f"low-{number}" for number in range(AT_ONCE - 1))]
    second = refusing.waiting.overdue(refusing.now_s)
    assert [asked.uid for asked in second] == [f"low-{AT_ONCE - 1}"]


def test_who_does_not_fit_does_not_hide_who_does(refusing: Refusing) -> None:
    for number in range(3 * AT_ONCE):
        big = calls.pod(f"big-{number}", objects.container("main", gpu=200))
        big["spec"]["priority"] = 1000
        refusing.verbs.filter(arguments(big, names(1)))
    refusing.free()
    assert refusing.overdue(after_s=PATIENCE_S) == ["waits"]


def test_no_more_kinds_are_looked_for_at_once_than_there_is_time_for(
    refusing: Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_REQUESTS", 1)
    big = calls.pod("big", objects.container("main", gpu=200))
    big["spec"]["priority"] = 1000
    refusing.verbs.filter(arguments(big, names(1)))
    refusing.free()
    refusing.waiting.overdue(refusing.now_s)
    looks = [refusing.waiting.overdue(refusing.now_s + PATIENCE_S) for _ in range(2)]
    assert [[asked.uid for asked in each] for each in looks] == [[], ["waits"]]


def test_a_refused_request_waits_for_no_room(refusing: Refusing) -> None:
    raw = calls.pod("wrong", objects.container("main", core=150, ratio=50))
    refusing.verbs.filter(arguments(raw, names(1)))
    refusing.free()
    assert refusing.overdue(after_s=PATIENCE_S) == ["waits"]


def test_of_too_many_the_last_refused_are_remembered(
    refusing: Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_MOST", 2)
    refusing.ask("second")
    refusing.ask("third")
    refusing.free()
    assert refusing.overdue(after_s=PATIENCE_S) == ["second", "third"]
