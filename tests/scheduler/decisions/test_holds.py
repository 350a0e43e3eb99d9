"""When the answer to kube-scheduler's call is held back, and for how long."""

from __future__ import annotations

import pytest

from scheduler.decisions.nomination import Nomination, When
from scheduler.decisions.pace import FEW, LEAD, MAX_BINDING, MAX_HOLD_S, SEARCH_S
from tests.scheduler import calls
from tests.scheduler.decisions.backlog_scene import OURS, TINY, Cluster


def received(cluster: Cluster, nomination: Nomination) -> None:
    """The watch reports the pod with its nomination."""
    uid, status = nomination.pending.uid, {"nominatedNodeName": nomination.node}
    cluster.comes(uid, TINY, status=status, metadata={"managedFields": OURS})


def test_kube_scheduler_is_held_back_until_it_has_received_enough_nominations(
    cluster: Cluster,
) -> None:
    """Not merely written: it searches all nodes for a pod whose nomination it has not received."""
    cluster.tried_first(TINY)
    pods = cluster.many(LEAD + 8, TINY)
    first, *planned = cluster.plan()
    assert first.node is not None
    cluster.tries(pods[0], first.node)
    assert cluster.backlog.hold_s(0) == SEARCH_S
    for each in planned:
        cluster.backlog.written(each, "2")
    for each in planned[: LEAD - 1]:
        assert cluster.backlog.hold_s(0) > 0
        received(cluster, each)
    assert not cluster.backlog.may_go_on(0)
    received(cluster, planned[LEAD - 1])
    assert cluster.backlog.hold_s(0) == 0
    node = planned[0].node
    assert node is not None
    cluster.tries(pods[1], node)
    assert not cluster.backlog.may_go_on(0)
    for each in planned[LEAD:]:
        received(cluster, each)
    for number, each in enumerate(planned[1:], 2):
        assert cluster.backlog.may_go_on(0)  # the last ones, too: none is to come
        assert each.node is not None
        cluster.tries(pods[number], each.node)


@pytest.mark.parametrize(
    ("when", "pods", "nodes", "is_held"),
    [
        (When.OFF, FEW + 1, 600, False),
        (When.BACKLOG, FEW, 600, False),
        (When.BACKLOG, FEW + 1, 600, True),
        (When.BACKLOG, FEW + 1, 20, False),
        (When.ALWAYS, 1, 20, True),
    ],
)
def test_kube_scheduler_is_held_back_only_where_nominations_are_to_come(
    when: When, pods: int, nodes: int, is_held: bool
) -> None:
    cluster = Cluster(when, nodes=nodes)
    cluster.tried_first(TINY)
    cluster.many(pods, TINY)
    assert cluster.backlog.may_go_on(0) is not is_held
    for number in range(pods):
        cluster.backlog.remove(f"p{number}")
    assert cluster.backlog.may_go_on(0)


def saved_one(cluster: Cluster, took_s: float = 0.0) -> None:
    """kube-scheduler has tried a nominated pod, and another one waits."""
    cluster.comes("probe", TINY)
    raw = cluster.comes("saved", TINY)
    wanted = cluster.plan()[-1]
    cluster.comes("behind", TINY)
    assert wanted.node is not None
    cluster.now_s += took_s
    cluster.tries(raw, wanted.node)


@pytest.mark.parametrize(("search_s", "most_s"), [(0.004, 0.004), (0.5, MAX_HOLD_S)])
def test_a_nominated_pods_turn_takes_no_longer_than_a_search(
    search_s: float, most_s: float, cluster: Cluster
) -> None:
    """However long kube-scheduler was held back before."""
    cluster.tried_first(TINY)
    for raw in cluster.many(80, TINY):
        cluster.now_s += search_s
        cluster.tries(raw)
        cluster.now_s += 0.05
        cluster.backlog.answered()
    saved_one(cluster, took_s=0.001)
    assert cluster.backlog.hold_s(0) == pytest.approx(most_s - 0.001, rel=0.01)


def test_kube_scheduler_is_held_back_while_many_bindings_are_in_progress(cluster: Cluster) -> None:
    cluster.tried_first(TINY)
    raw = cluster.comes("p0", TINY)
    node = cluster.planned()["p0"]
    assert node is not None
    cluster.tries(raw, node)
    assert cluster.backlog.hold_s(MAX_BINDING) == 0
    assert cluster.backlog.hold_s(MAX_BINDING + 1) > 0


def test_a_pod_for_which_no_nomination_saved_a_search_is_not_held_back(cluster: Cluster) -> None:
    """Else, where the API server takes seconds to refuse the writes, it would wait twice as
    long."""
    cluster.tried_first(TINY)
    other = cluster.comes("other", TINY, priority=5, status={"nominatedNodeName": "n1"})
    searched, again, gone, *_ = cluster.many(8, TINY)
    cluster.tries(searched)
    assert not cluster.backlog.may_go_on(0)
    assert cluster.backlog.hold_s(0) == 0
    cluster.tries(other, "n1")
    assert cluster.backlog.hold_s(0) == 0
    cluster.tries(calls.pod("unknown", TINY), "n1")
    assert cluster.backlog.hold_s(0) == 0
    node, changed = cluster.planned(2).values()
    assert node is not None and changed is not None
    cluster.state.reservations.end("p2")
    cluster.tries(gone, changed)
    assert cluster.backlog.hold_s(0) == 0
    cluster.tries(again, node)
    assert cluster.backlog.hold_s(0) > 0
    cluster.tries(again, node)  # its Binding was refused
    assert cluster.backlog.hold_s(0) == 0


def test_time_in_which_kube_scheduler_had_no_pod_to_try_is_no_search(cluster: Cluster) -> None:
    cluster.tried_first(TINY)
    for number in range(80):
        cluster.now_s += 0.5
        raw = cluster.comes(f"p{number}", TINY)
        cluster.now_s += 0.004
        cluster.tries(raw)
        cluster.now_s += 0.3
        cluster.tries(raw)  # refused at first
    saved_one(cluster)
    assert cluster.backlog.hold_s(0) == SEARCH_S


def test_a_nomination_that_kube_scheduler_withdrew_is_not_waited_for(cluster: Cluster) -> None:
    """It withdraws those of lower priority on the node for which it evicts pods."""
    cluster.tried_first(TINY)
    cluster.many(4, TINY)
    planned = cluster.plan()
    for each in planned:
        received(cluster, each)
    assert cluster.backlog.may_go_on(0)
    raw = cluster.comes("p1", TINY)
    assert cluster.backlog.may_go_on(0)
    assert cluster.tries(raw) == [planned[1].node]


def test_nominations_of_lower_priority_are_no_reason_to_answer(cluster: Cluster) -> None:
    cluster.tried_first(TINY)
    cluster.many(LEAD + 1, TINY)
    for each in cluster.plan():
        received(cluster, each)
    assert cluster.backlog.may_go_on(0)
    cluster.comes("same", TINY)
    assert cluster.backlog.may_go_on(0)
    cluster.comes("high", TINY, priority=5)
    assert not cluster.backlog.may_go_on(0)
    assert len(cluster.plan()) == 2
    assert not cluster.backlog.may_go_on(0)
    cluster.comes(
        "high",
        TINY,
        priority=5,
        status={"nominatedNodeName": "n0"},
        metadata={"managedFields": OURS},
    )
    assert cluster.backlog.may_go_on(0)
