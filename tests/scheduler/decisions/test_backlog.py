"""Nominations of waiting pods: for which, where, in which order, and how each ends."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.core.reservations import Kind
from scheduler.decisions import backlog
from scheduler.decisions.backlog import REFRESH_S, RETRY_S, WINDOW
from scheduler.decisions.nomination import Outcome, When
from scheduler.decisions.pace import FEW
from scheduler.decisions.pod_kinds import MAX_KINDS
from scheduler.kubernetes.waiting import waiting
from tests.scheduler import objects
from tests.scheduler.calls import names
from tests.scheduler.decisions.backlog_scene import OURS, TINY, Cluster
from tests.scheduler.decisions.test_verbs import WHOLE, chosen


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_no_pod_is_nominated_before_kube_scheduler_has_shown_the_candidates(
    cluster: Cluster,
) -> None:
    pods = cluster.many(6)
    assert cluster.plan() == []
    cluster.tries(pods[0])
    assert set(cluster.planned()) == {f"p{number}" for number in range(1, 6)}


@pytest.mark.parametrize(
    ("when", "count", "nominated"),
    [
        (When.BACKLOG, FEW, 0),
        (When.BACKLOG, FEW + 1, FEW),
        (When.ALWAYS, 1, 1),
        (When.OFF, FEW + 1, 0),
    ],
)
def test_a_write_is_spent_only_where_pods_wait(
    when: When, count: int, nominated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_small_fleets(monkeypatch)
    cluster = Cluster(when)
    cluster.learned()
    cluster.many(count)
    assert len(cluster.plan()) == nominated


def in_small_fleets(monkeypatch: pytest.MonkeyPatch) -> None:
    least = {**backlog._LEAST_NODES, When.BACKLOG: 1}
    monkeypatch.setattr(backlog, "_LEAST_NODES", least)


@pytest.mark.parametrize(("count", "waited_s", "left"), [(12, 0.2, 1), (12, 0.3, 0), (8, 0.3, 8)])
def test_the_foremost_pod_is_nominated_only_where_kube_scheduler_rests(
    count: int, waited_s: float, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped, or tries other pods first. Else it has taken that pod already. A few pods are
    left to it in either case."""
    in_small_fleets(monkeypatch)
    cluster = Cluster(When.BACKLOG)
    cluster.learned(TINY)
    cluster.now_s += 1
    pods = cluster.many(count, TINY)
    cluster.now_s += waited_s
    assert len(cluster.planned()) == count - left
    cluster.tries(pods[0])
    assert cluster.planned() == {}


def test_of_pods_of_many_kinds_one_is_left_to_kube_scheduler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not one of each kind: often none has a second pod."""
    in_small_fleets(monkeypatch)
    cluster = Cluster(When.BACKLOG)
    zones: list[dict[str, Any]] = [{"nodeSelector": {"zone": str(at)}} for at in range(FEW + 2)]
    for at, spec in enumerate(zones):
        cluster.tries(cluster.comes(f"first{at}", TINY, spec=spec))
        cluster.backlog.forget(f"first{at}")
    for at, spec in enumerate(zones):
        cluster.comes(f"p{at}", TINY, spec=spec)
    assert not cluster.backlog.may_go_on(0)
    assert list(cluster.planned()) == [f"p{at}" for at in range(1, FEW + 2)]


def test_pods_that_come_behind_nominated_ones_are_nominated_however_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_small_fleets(monkeypatch)
    cluster = Cluster(When.BACKLOG)
    cluster.learned(TINY)
    cluster.many(FEW + 1, TINY)
    cluster.plan()
    cluster.comes("late", TINY)
    assert "late" in cluster.planned()


def test_in_a_small_fleet_no_write_is_spent() -> None:
    cluster = Cluster(When.BACKLOG)
    cluster.learned()
    cluster.many(20)
    assert cluster.plan() == []


def test_a_binding_names_the_version_after_the_nomination(cluster: Cluster) -> None:
    """kube-scheduler may send the pod as it was before."""
    cluster.learned()
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


def test_only_nodes_that_kube_scheduler_accepted_are_nominated(cluster: Cluster) -> None:
    cluster.tries(cluster.comes("first"), "n2", "n4")
    cluster.many(8)
    assert set(cluster.planned().values()) == {"n2", "n4"}


def test_each_kind_of_pod_has_candidates_of_its_own(cluster: Cluster) -> None:
    cluster.learned()
    cluster.many(8, spec={"nodeSelector": {"zone": "a"}})
    assert cluster.plan() == []


def test_pods_are_nominated_in_the_order_of_kube_schedulers_queue(cluster: Cluster) -> None:
    cluster.learned()
    cluster.comes("late", metadata={"creationTimestamp": "2026-01-01T00:00:02Z"})
    cluster.comes("low", priority=-1)
    cluster.comes("early", metadata={"creationTimestamp": "2026-01-01T00:00:01Z"})
    cluster.comes("high", priority=5)
    assert list(cluster.planned()) == ["high", "early", "late", "low"]


def test_the_window_ahead_of_kube_scheduler_is_bounded() -> None:
    cluster = Cluster(nodes=3, gpus=2)
    cluster.learned(TINY)
    pods = cluster.many(WINDOW + 50, TINY)
    nodes = cluster.planned()
    assert len(nodes) == WINDOW
    assert cluster.plan() == []
    node = nodes["p0"]
    assert node is not None and cluster.tries(pods[0], node) == [node]
    assert len(cluster.plan()) == 1


def test_pods_of_higher_priority_are_nominated_however_many_others_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """kube-scheduler tries them first, and the others' nominations last for 30 s."""
    monkeypatch.setattr(backlog, "MOST_AHEAD", WINDOW + 10)
    cluster = Cluster(nodes=6, gpus=2)
    cluster.learned(TINY)
    cluster.many(WINDOW, TINY)
    assert len(cluster.plan()) == WINDOW
    for number in range(12):
        cluster.comes(f"high{number}", TINY, priority=5)
    assert len(cluster.planned(8)) == 8
    assert list(cluster.planned()) == ["high8", "high9"]


def test_gpus_are_reserved_so_that_no_two_nominations_need_the_same(cluster: Cluster) -> None:
    """Six nodes of two GPUs take 24 halves."""
    cluster.learned()
    cluster.many(40)
    nominated = cluster.planned()
    assert len(nominated) == 24
    assert all(list(nominated.values()).count(name) == 4 for name in names(6))


def test_a_nominated_pod_gets_its_reservation(cluster: Cluster) -> None:
    cluster.learned()
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
    cluster.learned()
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
    cluster.learned()
    pods = cluster.many(8)
    node = cluster.planned(1)["p0"]
    assert node is not None
    others = [name for name in names(6) if name != node]
    assert cluster.tries(pods[0], *others)
    assert cluster.backlog.counts[Outcome.REFUSED] == 1
    assert node not in cluster.planned().values()


@pytest.mark.parametrize(
    "fields",
    [
        {"status": {"nominatedNodeName": "n1"}},
        {"spec": {"schedulingGates": [{"name": "queue"}]}},
        {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
        {"spec": {"affinity": {"podAntiAffinity": {}, "podAffinity": {"required": []}}}},
        {"spec": {"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]}},
        {"spec": {"volumes": [{"persistentVolumeClaim": {"claimName": "data"}}]}},
        {"spec": {"schedulerName": "default-scheduler"}},
        {
            "spec": {
                "affinity": {
                    "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}
                }
            }
        },
        {
            "status": {
                "conditions": [{"type": "PodScheduled", "reason": "Unschedulable"}],
            }
        },
    ],
    ids=lambda fields: str(fields)[:60],
)
def test_these_pods_are_left_to_kube_scheduler(fields: dict[str, Any]) -> None:
    cluster = Cluster(When.ALWAYS)
    raw = cluster.comes("odd", **fields)
    if cluster.backlog.serves(raw["spec"]["schedulerName"]):
        cluster.tries(cluster.comes("first", spec=fields.get("spec", {})))
        assert cluster.plan() == []
    else:
        assert raw["spec"]["schedulerName"] == "default-scheduler"


def test_a_pod_is_nominated_once_its_gate_is_removed() -> None:
    cluster = Cluster(When.ALWAYS)
    cluster.learned()
    cluster.comes("gated", spec={"schedulingGates": [{"name": "queue"}]})
    assert cluster.plan() == []
    cluster.comes("gated")
    assert set(cluster.planned()) == {"gated"}


def test_a_nomination_ends_at_its_deadline_and_is_withdrawn(cluster: Cluster) -> None:
    cluster.learned()
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
    cluster.learned()
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
    cluster.learned()
    raw = cluster.comes("p0")
    node = cluster.planned()["p0"]
    assert node is not None
    nominated(cluster, raw, node)
    cluster.backlog.preempts("p0", {node})
    raw["status"]["conditions"] = UNSCHEDULABLE
    cluster.backlog.observe(waiting(raw))
    cluster.now_s += Kind.NOMINATED.value + 1
    assert cluster.plan() == []


def test_a_single_node_shows_no_candidates(cluster: Cluster) -> None:
    """kube-scheduler tries another component's nomination alone."""
    cluster.tries(cluster.comes("preemptor"), "n1")
    cluster.many(4)
    assert cluster.plan() == []
    cluster.tries(cluster.comes("first"))
    assert len(cluster.plan()) == 4


def test_candidates_on_which_no_pod_fits_are_forgotten(cluster: Cluster) -> None:
    """Nodes left, or were filled. The next pod that kube-scheduler tries shows the present ones."""
    cluster.tries(cluster.comes("first"), "n0", "gone")
    cluster.state.remove_node("n0")
    pods = cluster.many(6)
    assert cluster.plan() == []
    cluster.tries(pods[0])
    assert set(cluster.planned()) == {f"p{number}" for number in range(1, 6)}


@pytest.mark.parametrize("when", list(When))
def test_pods_that_left_take_no_memory(when: When) -> None:
    """In a small fleet, and in a process without the Lease, `plan` takes none from the queues."""
    cluster = Cluster(when)
    for raw in cluster.many(40):
        cluster.tries(raw)
    for raw in cluster.many(40, spec={"nodeSelector": {"zone": "a"}}):
        cluster.backlog.bound(raw["metadata"]["uid"], "n0")
    assert not cluster.backlog._pods
    assert len(cluster.backlog._kinds) <= 1


def test_the_kinds_with_candidates_are_bounded(cluster: Cluster) -> None:
    for number in range(MAX_KINDS + 20):
        cluster.tries(cluster.comes(f"p{number}", spec={"nodeSelector": {"at": str(number)}}))
        cluster.backlog.forget(f"p{number}")
    assert len(cluster.backlog._kinds) == MAX_KINDS
    cluster.comes("old", spec={"nodeSelector": {"at": "0"}})
    cluster.comes("new", spec={"nodeSelector": {"at": "200"}})
    assert set(cluster.planned()) == {"new"}


def test_searches_take_no_more_than_the_common_budget(cluster: Cluster) -> None:
    """kube-scheduler's own calls come first. One container needs no search."""
    two = [objects.container(name, core=10, ratio=10) for name in ("one", "two")]
    cluster.tries(cluster.comes("first", *two))
    cluster.tries(cluster.comes("second", TINY))
    cluster.many(4, *two)
    with cluster.state.budget.steps(10**9, 0) as steps:
        steps.taken = cluster.state.budget.left
    assert cluster.plan() == []
    cluster.state.budget.refill(1.0)
    assert len(cluster.plan()) == 4


def test_nothing_is_nominated_in_a_paused_namespace(cluster: Cluster) -> None:
    cluster.learned()
    cluster.many(4)
    cluster.comes("other", metadata={"namespace": "research"})
    planned = cluster.backlog.plan(1000, lambda: False, {"default"})
    assert [each.pending.uid for each in planned] == ["other"]


def test_a_failed_write_frees_the_gpus_and_leaves_the_pod_to_kube_scheduler(
    cluster: Cluster,
) -> None:
    cluster.learned()
    cluster.many(4)
    free = cluster.state.fleet.free_bytes.sum()
    for each in cluster.plan():
        cluster.backlog.failed(each)
    assert cluster.state.fleet.free_bytes.sum() == free
    assert cluster.plan() == []


def test_a_pod_that_left_frees_its_reservation_and_is_not_nominated(cluster: Cluster) -> None:
    cluster.learned()
    cluster.many(5)
    cluster.backlog.forget("p0")
    assert set(cluster.planned()) == {"p1", "p2", "p3", "p4"}


def test_a_reservation_makes_no_pod_wait(cluster: Cluster) -> None:
    """A pod of higher priority that arrives late takes the GPUs of nominated ones."""
    cluster.learned(WHOLE)
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


def test_candidates_are_renewed_by_leaving_one_pod_to_kube_scheduler(cluster: Cluster) -> None:
    cluster.learned(TINY)
    cluster.now_s += REFRESH_S + 1
    pods = cluster.many(6, TINY)
    assert set(cluster.planned()) == {f"p{number}" for number in range(1, 6)}
    cluster.tries(pods[0], "n4", "n5")
    for number in range(6, 12):
        cluster.comes(f"p{number}", TINY)
    assert set(cluster.planned().values()) <= {"n4", "n5"}


def test_the_pod_left_to_kube_scheduler_stays_left_when_the_watch_reports_it_again(
    cluster: Cluster,
) -> None:
    cluster.learned(TINY)
    cluster.now_s += REFRESH_S + 1
    raw = cluster.comes("left", TINY)
    assert cluster.plan() == []
    cluster.backlog.observe(waiting(raw))
    assert cluster.plan() == []
    cluster.tries(raw, "n4", "n5")
    cluster.comes("next", TINY)
    assert set(cluster.planned().values()) <= {"n4", "n5"}
