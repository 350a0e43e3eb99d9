"""The pods to requeue: refused before, feasible now, and not retried since."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.core.reservations import Nomination
from scheduler.decisions import requeue
from scheduler.decisions.requeue import MAX_DUE, TIMEOUT_S, Unschedulable
from scheduler.decisions.verbs import Verbs
from scheduler.kubernetes.leases import agent_lease
from scheduler.kubernetes.requests import pending, request
from tests.scheduler import calls, objects
from tests.scheduler.calls import add_node, arguments, bind, filtered, names

WHOLE = objects.container("main", gpu=100)
SMALL = objects.container("main", core=1, ratio=1)


class Refusing:
    """Nodes with one GPU each, and the refused pod `waits`. Pod `on-n0` holds the GPU of n0."""

    def __init__(self, nodes: int = 1) -> None:
        self.state = calls.state(nodes=nodes, gpus=1)
        self.queue = Unschedulable(self.state)
        self.verbs = Verbs(self.state, retries=self.queue)
        self.now_s = 1000.0
        for name in names(nodes):
            self.take(name)
        self.ask("waits")

    def ask(self, uid: str, *containers: dict[str, Any], priority: int = 0) -> None:
        raw = calls.pod(uid, *containers)
        raw["spec"]["priority"] = priority
        filtered(self.verbs, raw, ["n0"])

    def ask_many(self, count: int = MAX_DUE) -> list[str]:
        uids = [f"more-{number}" for number in range(count)]
        for uid in uids:
            self.ask(uid)
        return uids

    def look(self) -> list[str]:
        """Return the UIDs of the pods to requeue now."""
        return calls.due(self.queue, self.now_s)

    def overdue(self, after_s: float = TIMEOUT_S) -> list[str]:
        """Examine the queue now and `after_s` later. Return the UIDs to requeue the second time."""
        self.look()
        self.now_s += after_s
        return self.look()

    def take(self, name: str = "n0") -> None:
        bind(self.state, calls.pod(f"on-{name}", WHOLE), name)

    def free(self, name: str = "n0") -> None:
        self.state.remove_pod(f"on-{name}")

    def churn(self, name: str = "n0") -> None:
        """Let a small pod come and go, and advance the clock by a second."""
        bind(self.state, calls.pod("small", SMALL), name)
        self.state.remove_pod("small")
        self.now_s += 1.0


@pytest.fixture
def refusing() -> Refusing:
    return Refusing()


def test_a_pod_is_requeued_once_for_free_capacity(refusing: Refusing) -> None:
    assert refusing.overdue(after_s=100.0) == [], "there is no free capacity"
    refusing.free()
    assert refusing.overdue(after_s=TIMEOUT_S - 0.1) == []
    assert refusing.overdue(after_s=0.1) == ["waits"]
    assert refusing.overdue(after_s=100.0) == []
    refusing.take()
    refusing.free()
    assert refusing.overdue() == ["waits"]


def test_a_pod_whose_write_failed_is_returned_again(refusing: Refusing) -> None:
    refusing.free()
    assert refusing.overdue() == ["waits"] and refusing.overdue() == []
    refusing.queue.again("waits")
    refusing.queue.again("gone")
    assert refusing.overdue() == ["waits"]


def test_a_pod_that_kube_scheduler_has_retried_is_not_requeued(refusing: Refusing) -> None:
    refusing.free()
    refusing.ask("waits")
    assert refusing.overdue(after_s=100.0) == []


def test_a_pod_waits_for_the_end_of_a_reservation_of_its_priority(refusing: Refusing) -> None:
    refusing.ask("high", priority=1000)
    refusing.free()
    refusing.verbs.filter(arguments(calls.pod("expected", WHOLE), names(1)))
    assert refusing.overdue() == ["high"]
    refusing.queue.remove("high")
    refusing.state.reservations.end("expected")
    assert refusing.overdue() == ["waits"]


def test_a_nominated_pod_is_requeued_for_its_own_gpu(refusing: Refusing) -> None:
    asked = request(calls.pod("waits", WHOLE))
    assert asked is not None
    refusing.state.reservations.nominate("waits", Nomination("n0", asked, 0))
    refusing.free()
    assert refusing.overdue() == ["waits"]


def test_an_agent_that_is_ready_again_requeues_a_pod(refusing: Refusing) -> None:
    refusing.free()
    said = (1, "no"), (2, "true"), (3, "true")
    unready, ready, renewed = (agent_lease(objects.lease("n0", *each)) for each in said)
    assert unready is not None and ready is not None and renewed is not None
    refusing.state.observe_lease(unready, 1.0)
    refusing.ask("waits")
    assert refusing.overdue(after_s=100.0) == []
    refusing.state.observe_lease(ready, 2.0)
    assert refusing.overdue() == ["waits"]
    refusing.state.observe_lease(renewed, 3.0)
    assert refusing.overdue() == [], "a renewal frees no capacity"


@pytest.mark.parametrize("nodes", [1, 7])
def test_a_new_node_requeues_a_pod(nodes: int) -> None:
    refusing = Refusing(nodes)
    add_node(refusing.state, "new", objects.gpu("GPU-new", 0))
    assert refusing.overdue() == ["waits"]


def test_pods_of_high_priority_are_requeued_first_in_small_batches(refusing: Refusing) -> None:
    *low, last = refusing.ask_many()
    refusing.ask("high", priority=1000)
    refusing.queue.remove("waits")
    refusing.free()
    assert refusing.overdue() == ["high", *low]
    assert refusing.look() == [last]


def test_entries_take_turns_and_none_is_left_out(refusing: Refusing) -> None:
    """Neither many requests that never fit nor constant changes of capacity delay other pods."""
    for number in range(300):
        never = objects.container("main", core=100, memory=f"{100 + number}Gi")
        refusing.ask(f"big-{number}", never)
    refusing.free()
    for _ in range(40):
        refusing.churn()
        is_over = iter([False] * 19 + [True])
        refusing.queue.work(refusing.now_s, is_over.__next__)
        if refusing.queue.due():
            return
    pytest.fail("never due")


def test_free_capacity_on_nodes_that_are_no_candidates_requeues_no_pod() -> None:
    """kube-scheduler sent only n0 for the pod, and n0 is full. n1 has free capacity and changes."""
    refusing = Refusing(nodes=2)
    refusing.free("n1")
    for _ in range(30):
        refusing.churn("n1")
        assert refusing.look() == []
    refusing.free()
    assert refusing.overdue() == ["waits"]


def test_a_turn_examines_a_part_of_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pass examines only some nodes, in order not to block the event loop for long."""
    monkeypatch.setattr(requeue, "max_rows", lambda request: 2)
    state = calls.state(nodes=5, gpus=1)
    for name in names(4):
        bind(state, calls.pod(f"on-{name}", WHOLE), name)
    queue = Unschedulable(state)
    queue.restore(pending(calls.pod("waits")))
    dues = [calls.due(queue, turn * TIMEOUT_S) for turn in range(6)]
    assert sorted(dues) == [[]] * 5 + [["waits"]] and dues[1] == []


def test_pods_that_no_longer_fit_leave_the_event_loop_free(refusing: Refusing) -> None:
    """Capacity is freed for many pods, and taken again. A call of `due` drops one of these pods."""
    refusing.ask_many()
    refusing.free()
    for _ in range(2):
        refusing.queue.work(refusing.now_s, lambda: False)
        refusing.now_s += TIMEOUT_S
    refusing.take()
    assert len(refusing.queue._ready) == MAX_DUE
    for left in range(MAX_DUE - 1, -1, -1):
        assert refusing.queue.due(iter((False, True)).__next__) == []
        assert len(refusing.queue._ready) == left


def test_pods_that_were_refused_before_a_restart_are_restored(refusing: Refusing) -> None:
    refusing.queue = Unschedulable(refusing.state)
    foreign = calls.pod("foreign")
    foreign["spec"]["schedulerName"] = "koord-scheduler"
    for raw in (calls.pod("before"), foreign):
        refusing.queue.restore(pending(raw))
    assert refusing.overdue() == []
    refusing.free()
    assert refusing.overdue() == ["before"]


def test_a_pod_with_a_refused_request_is_not_queued(refusing: Refusing) -> None:
    refusing.ask("wrong", objects.container("main", core=150, ratio=50))
    refusing.free()
    assert refusing.overdue() == ["waits"]


def test_of_too_many_pods_the_last_are_kept(
    refusing: Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requeue, "MAX_PODS", 2)
    last = refusing.ask_many(2)
    refusing.free()
    assert refusing.overdue() == last
