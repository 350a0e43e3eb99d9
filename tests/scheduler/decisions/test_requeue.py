"""The pods to requeue: refused, feasible now, and not retried since."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.decisions import requeue
from scheduler.decisions.requeue import MAX_DUE, TIMEOUT_S, Unschedulable
from scheduler.decisions.verbs import Verbs
from scheduler.kubernetes.leases import agent_lease
from scheduler.kubernetes.requests import pending
from tests.scheduler import calls, objects
from tests.scheduler.calls import add_node, arguments, bind, names

WHOLE = objects.container("main", gpu=100)


class Refusing:
    """One GPU, held by the pod `holder`."""

    def __init__(self) -> None:
        self.state = calls.state(nodes=1, gpus=1)
        self.queue = Unschedulable(self.state)
        self.verbs = Verbs(self.state, retries=self.queue)
        self.now_s = 1000.0
        bind(self.state, calls.pod("holder", WHOLE), "n0")

    def ask(self, uid: str, **fields: Any) -> bytes:
        raw = calls.pod(uid)
        raw["spec"].update(fields)
        return self.verbs.filter(arguments(raw, names(1)))

    def refuse_big(self, number: int) -> None:
        """A request of a unique shape that never fits."""
        big = objects.container("main", core=100, memory=f"{100 + number}Gi")
        self.verbs.filter(arguments(calls.pod(f"big-{number}", big), names(1)))

    def look(self) -> list[str]:
        """The UIDs of the pods due now."""
        while not self.queue.work(self.now_s, lambda: False):
            pass
        return [asked.uid for asked in self.queue.due()]

    def overdue(self, after_s: float = 0.0) -> list[str]:
        """Works now and again after a delay; returns the UIDs due the second time."""
        self.look()
        self.now_s += after_s
        return self.look()

    def free(self) -> None:
        self.state.remove_pod("holder")


@pytest.fixture
def refusing() -> Refusing:
    made = Refusing()
    made.ask("waits")
    return made


def test_no_pod_is_requeued_without_free_capacity(refusing: Refusing) -> None:
    assert refusing.overdue(after_s=100.0) == []


def test_a_pod_that_fits_now_is_tried_again_once_kube_scheduler_has_had_its_time(
    refusing: Refusing,
) -> None:
    refusing.free()
    assert refusing.overdue(after_s=TIMEOUT_S - 0.1) == []
    assert refusing.overdue(after_s=0.1) == ["waits"]


def test_a_pod_is_requeued_once_for_the_same_free_capacity(refusing: Refusing) -> None:
    refusing.free()
    assert refusing.overdue(after_s=TIMEOUT_S) == ["waits"]
    assert refusing.overdue(after_s=100.0) == []
    bind(refusing.state, calls.pod("holder", WHOLE), "n0")
    refusing.free()
    assert refusing.overdue(after_s=TIMEOUT_S) == ["waits"]


def test_a_pod_that_kube_scheduler_has_retried_is_not_requeued(refusing: Refusing) -> None:
    refusing.free()
    refusing.ask("waits")
    assert refusing.overdue(after_s=100.0) == []


def test_capacity_that_is_only_reserved_for_another_pod_is_free(refusing: Refusing) -> None:
    """The end of a reservation is no change that requeues a pod."""
    refusing.free()
    other = arguments(calls.pod("expected", WHOLE), names(1))
    refusing.verbs.filter(other)
    refusing.verbs.prioritize(other)
    assert refusing.overdue(after_s=TIMEOUT_S) == ["waits"]


def test_an_agent_that_is_ready_again_requeues_a_pod() -> None:
    refusing = Refusing()
    refusing.free()
    unready = agent_lease(objects.lease("n0", ready="no library"))
    ready = agent_lease(objects.lease("n0"))
    assert unready is not None
    assert ready is not None
    refusing.state.observe_lease(unready, 1.0)
    refusing.ask("waits")
    assert refusing.overdue(after_s=100.0) == []
    refusing.state.observe_lease(ready, 2.0)
    assert refusing.overdue(after_s=TIMEOUT_S) == ["waits"]


def test_a_new_node_requeues_a_pod(refusing: Refusing) -> None:
    add_node(refusing.state, "n1", objects.gpu("GPU-n1-0", 0))
    assert refusing.overdue(after_s=TIMEOUT_S) == ["waits"]


def test_pods_of_high_priority_are_requeued_first_in_small_batches() -> None:
    refusing = Refusing()
    for number in range(MAX_DUE):
        refusing.ask(f"low-{number}")
    refusing.ask("high", priority=1000)
    refusing.free()
    first = refusing.overdue(after_s=TIMEOUT_S)
    assert first == ["high", *(f"low-{number}" for number in range(MAX_DUE - 1))]
    assert refusing.look() == [f"low-{MAX_DUE - 1}"]


def test_entries_take_turns_and_none_is_left_out(refusing: Refusing) -> None:
    """It holds with any number of requests that never fit, and however often capacity changes."""
    for number in range(300):
        refusing.refuse_big(number)
    refusing.free()
    for _ in range(40):
        small = calls.pod("small", objects.container("main", core=1, ratio=1))
        bind(refusing.state, small, "n0")
        refusing.state.remove_pod("small")
        refusing.now_s += 1.0
        is_over = iter([False] * 19 + [True])
        refusing.queue.work(refusing.now_s, is_over.__next__)
        if [asked.uid for asked in refusing.queue.due()]:
            return
    pytest.fail("never due")


def test_free_capacity_on_nodes_that_are_no_candidates_requeues_no_pod() -> None:
    """A pod pinned to a full pool, while another pool has capacity and churns."""
    state = calls.state(nodes=2, gpus=1)
    queue = Unschedulable(state)
    verbs = Verbs(state, retries=queue)
    bind(state, calls.pod("holder", WHOLE), "n0")
    verbs.filter(arguments(calls.pod("pinned", WHOLE), ["n0"]))
    now_s = 0.0
    for churn in range(30):
        small = calls.pod(f"small-{churn}", objects.container("main", core=1, ratio=1))
        bind(state, small, "n1")
        state.remove_pod(f"small-{churn}")
        now_s += 1.0
        queue.work(now_s, lambda: False)
        assert queue.due() == []
    state.remove_pod("holder")
    queue.work(now_s, lambda: False)
    queue.work(now_s + TIMEOUT_S, lambda: False)
    assert [asked.uid for asked in queue.due()] == ["pinned"]


def test_a_pod_whose_free_capacity_is_taken_meanwhile_is_not_due(refusing: Refusing) -> None:
    for number in range(2 * MAX_DUE):
        refusing.ask(f"more-{number}")
    refusing.free()
    assert len(refusing.overdue(after_s=TIMEOUT_S)) == MAX_DUE
    bind(refusing.state, calls.pod("first", WHOLE), "n0")
    assert refusing.overdue(after_s=TIMEOUT_S) == []


def test_a_turn_examines_a_part_of_the_nodes_and_the_next_one_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pod of many containers must not block the event loop for long."""
    monkeypatch.setattr(requeue, "max_rows", lambda request: 2)
    state = calls.state(nodes=5, gpus=1)
    for name in names(4):
        bind(state, calls.pod(f"on-{name}", WHOLE), name)
    queue = Unschedulable(state)
    queue.restore(pending(calls.pod("waits")))
    dues = []
    for turn in range(6):
        while not queue.work(turn * TIMEOUT_S, lambda: False):
            pass
        dues.append([each.uid for each in queue.due()])
    assert sorted(dues) == [[]] * 5 + [["waits"]] and dues[1] == []


def test_pods_that_no_longer_fit_leave_the_event_loop_free(refusing: Refusing) -> None:
    """Capacity came for many, and is used before they are requeued."""
    for number in range(MAX_DUE):
        refusing.ask(f"more-{number}")
    refusing.free()
    for _ in range(2):
        refusing.queue.work(refusing.now_s, lambda: False)
        refusing.now_s += TIMEOUT_S
    bind(refusing.state, calls.pod("first", WHOLE), "n0")
    ready = len(refusing.queue._ready)
    assert ready == MAX_DUE
    for left in range(ready - 1, -1, -1):
        assert refusing.queue.due(iter((False, True)).__next__) == []
        assert len(refusing.queue._ready) == left


def test_pods_that_were_refused_before_a_restart_are_restored(refusing: Refusing) -> None:
    queue = Unschedulable(refusing.state)
    queue.restore(pending(calls.pod("before")))
    foreign = calls.pod("foreign")
    foreign["spec"]["schedulerName"] = "koord-scheduler"
    queue.restore(pending(foreign))
    refusing.queue = queue
    assert refusing.overdue(after_s=TIMEOUT_S) == []
    refusing.free()
    assert refusing.overdue(after_s=TIMEOUT_S) == ["before"]


def test_a_pod_with_a_refused_request_is_not_queued(refusing: Refusing) -> None:
    raw = calls.pod("wrong", objects.container("main", core=150, ratio=50))
    refusing.verbs.filter(arguments(raw, names(1)))
    refusing.free()
    assert refusing.overdue(after_s=TIMEOUT_S) == ["waits"]


def test_of_too_many_pods_the_last_refused_are_kept(
    refusing: Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requeue, "MAX_PODS", 2)
    refusing.ask("second")
    refusing.ask("third")
    refusing.free()
    assert refusing.overdue(after_s=TIMEOUT_S) == ["second", "third"]
