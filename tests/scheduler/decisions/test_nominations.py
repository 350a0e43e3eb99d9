"""A nomination from its write to its end, and the GPUs that are reserved for it."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.core.reservations import Kind
from scheduler.decisions.backlog import RETRY_S
from scheduler.decisions.nomination import Outcome, When
from scheduler.kubernetes.waiting import waiting
from tests.scheduler.calls import names
from tests.scheduler.decisions.backlog_scene import OURS, Cluster
from tests.scheduler.decisions.test_verbs import WHOLE, chosen


def test_a_binding_names_the_version_after_the_nomination(cluster: Cluster) -> None:
    """kube-scheduler may send the pod as it was before."""
    cluster.tried_first()
    pods = cluster.many(4)
    planned = {each.pending.uid: each for each in cluster.plan()}
    node = planned["p0"].node
    assert node is not None
    cluster.tries(pods[0], node)
    cluster.backlog.written(planned["p0"], "7")
    pending = cluster.verbs.pending_pod("p0")
    assert pending is not None and pending.version == "7"
    cluster.tries(pods[1] | {"metadata": pods[1]["metadata"] | {"resourceVersion": "9"}}, node)
    cluster.backlog.written(planned["p1"], "7")
    pending = cluster.verbs.pending_pod("p1")
    assert pending is not None and pending.version == "9"


def test_gpus_are_reserved_so_that_no_two_nominations_need_the_same(cluster: Cluster) -> None:
    """Six nodes of two GPUs take 24 halves."""
    cluster.tried_first()
    cluster.many(40)
    nominated = cluster.planned()
    assert len(nominated) == 24
    assert all(list(nominated.values()).count(name) == 4 for name in names(6))


def test_a_nominated_pod_gets_its_reservation(cluster: Cluster) -> None:
    cluster.tried_first()
    pods = cluster.many(8)
    node = cluster.planned()["p3"]
    assert node is not None
    reserved = cluster.reserved(pods[3], node)
    assert reserved is not None
    assert cluster.tries(pods[3], node) == [node]
    assert cluster.reserved(pods[3], node) is reserved
    cluster.backlog.bound("p3", node)
    assert cluster.backlog.counts[Outcome.CONFIRMED] == 1


def test_a_pod_that_kube_scheduler_takes_early_keeps_its_node(cluster: Cluster) -> None:
    """It searches all nodes, as it has not seen the nomination. A second search means that it
    refused the node after `filter`."""
    cluster.tried_first()
    pods = cluster.many(8)
    node = cluster.planned()["p7"]
    reserved = cluster.reserved(pods[7], node)
    assert cluster.tries(pods[7]) == [node]
    assert cluster.reserved(pods[7], node) is reserved
    assert (cluster.backlog.counts[Outcome.LATE], cluster.backlog.counts[Outcome.REFUSED]) == (1, 0)
    assert len(cluster.tries(pods[7])) > 1
    assert cluster.backlog.counts[Outcome.REFUSED] == 1
    assert cluster.reserved(pods[7], node) is None


def test_where_kube_scheduler_refuses_the_node_others_are_spared_it(cluster: Cluster) -> None:
    """kube-scheduler's call for all other nodes shows it."""
    cluster.tried_first()
    pods = cluster.many(8)
    node = cluster.planned(1)["p0"]
    assert node is not None
    others = [name for name in names(6) if name != node]
    assert cluster.tries(pods[0], *others)
    assert cluster.backlog.counts[Outcome.REFUSED] == 1
    assert node not in cluster.planned().values()


def test_a_nomination_ends_at_its_deadline_and_is_withdrawn(cluster: Cluster) -> None:
    cluster.tried_first()
    pods = cluster.many(4)
    node = cluster.planned()["p0"]
    free = cluster.state.fleet.free_bytes.sum()
    pods[0]["metadata"] |= {"managedFields": OURS, "resourceVersion": "2"}
    pods[0]["status"]["nominatedNodeName"] = node
    cluster.backlog.observe(waiting(pods[0]))
    cluster.now_s += Kind.NOMINATED.value - 0.1
    assert cluster.plan() == []
    cluster.now_s += 0.2
    withdrawn = cluster.plan()
    assert [(each.pending.uid, each.pending.version, each.node) for each in withdrawn] == [
        ("p0", "2", None)
    ]
    assert cluster.state.fleet.free_bytes.sum() > free
    assert cluster.backlog.counts[Outcome.EXPIRED] == 4
    assert cluster.plan() == []


def nominated(cluster: Cluster, raw: dict[str, Any], node: str | None) -> dict[str, Any]:
    """The watch reports the nomination of ours."""
    raw["metadata"] |= {"managedFields": OURS, "resourceVersion": "2"}
    raw["status"]["nominatedNodeName"] = node
    cluster.backlog.observe(waiting(raw))
    return raw


def test_a_nomination_of_an_earlier_process_is_adopted_until_the_deadline(cluster: Cluster) -> None:
    """It is not counted: that process did."""
    left = nominated(cluster, cluster.comes("left"), "n1")
    theirs = [{**OURS[0], "manager": "kube-scheduler"}]
    cluster.comes("theirs", metadata={"managedFields": theirs}, status={"nominatedNodeName": "n1"})
    assert cluster.plan() == []
    assert cluster.reserved(left, "n1") is not None
    cluster.now_s += Kind.NOMINATED.value + 1
    assert cluster.planned() == {"left": None}
    assert not cluster.backlog.counts.total()


@pytest.mark.parametrize("when", [When.ALWAYS, When.OFF])
def test_a_nomination_that_cannot_be_adopted_is_withdrawn(when: When) -> None:
    """The node is unknown, or nominations were turned off."""
    cluster = Cluster(when)
    nominated(cluster, cluster.comes("left"), "n1" if when is When.OFF else "gone")
    assert cluster.planned() == {"left": None}
    assert cluster.plan() == []


def test_another_process_counts_no_pod_as_confirmed(cluster: Cluster) -> None:
    """A process without the Lease observes what the leader nominates."""
    nominated(cluster, cluster.comes("p0"), "n1")
    cluster.backlog.bound("p0", "n1")
    assert not cluster.backlog.counts.total()


def test_a_withdrawal_that_failed_is_tried_again(cluster: Cluster) -> None:
    nominated(cluster, cluster.comes("left"), "gone")
    (wanted,) = cluster.plan()
    cluster.backlog.failed(wanted)
    assert cluster.plan() == []
    cluster.now_s += RETRY_S
    assert cluster.plan() == [wanted]
    cluster.backlog.written(wanted, "3")
    assert cluster.plan() == []
    assert not cluster.backlog.counts.total()


UNSCHEDULABLE = [{"type": "PodScheduled", "reason": "Unschedulable"}]


def test_a_pod_that_kube_scheduler_reports_as_unschedulable_keeps_no_nomination(
    cluster: Cluster,
) -> None:
    """No `filter` is called where kube-scheduler's own filters leave no node."""
    cluster.tried_first()
    raw = cluster.comes("p0")
    node = cluster.planned()["p0"]
    nominated(cluster, raw, node)
    raw["status"]["conditions"] = UNSCHEDULABLE
    cluster.backlog.observe(waiting(raw))
    assert cluster.reserved(raw, node) is None
    assert cluster.planned() == {"p0": None}
    assert cluster.backlog.counts[Outcome.REFUSED] == 1


def test_where_kube_scheduler_may_preempt_on_the_nominated_node_it_stays(cluster: Cluster) -> None:
    """kube-scheduler then writes no nomination of its own, as the node is the same."""
    cluster.tried_first()
    raw = cluster.comes("p0")
    node = cluster.planned()["p0"]
    assert node is not None
    nominated(cluster, raw, node)
    cluster.backlog.preempts("p0", {node})
    raw["status"]["conditions"] = UNSCHEDULABLE
    cluster.backlog.observe(waiting(raw))
    cluster.now_s += Kind.NOMINATED.value + 1
    assert cluster.plan() == []


def test_a_failed_write_frees_the_gpus_and_leaves_the_pod_to_kube_scheduler(
    cluster: Cluster,
) -> None:
    cluster.tried_first()
    cluster.many(4)
    free = cluster.state.fleet.free_bytes.sum()
    for each in cluster.plan():
        cluster.backlog.failed(each)
    assert cluster.state.fleet.free_bytes.sum() == free
    assert cluster.plan() == []


def test_a_pod_that_left_frees_its_reservation_and_is_not_nominated(cluster: Cluster) -> None:
    cluster.tried_first()
    cluster.many(5)
    cluster.backlog.remove("p0")
    assert set(cluster.planned()) == {"p1", "p2", "p3", "p4"}


def test_a_reservation_makes_no_pod_wait(cluster: Cluster) -> None:
    """A pod of higher priority that arrives late takes the GPUs of nominated ones."""
    cluster.tried_first(WHOLE)
    low = cluster.many(12, WHOLE, priority=-1)
    nominated = cluster.planned()
    assert len(nominated) == 12
    high = cluster.comes("high", WHOLE, priority=10)
    (node, *_) = cluster.tries(high)
    with cluster.state.reservations.lifted(cluster.state.fleet.all_rows()):
        placement = chosen(cluster.state, high, node)
    cluster.state.assume("high", placement, 0.0)
    ended = [raw for raw in low if not cluster.reserved(raw, nominated[raw["metadata"]["uid"]])]
    assert len(ended) == 1
