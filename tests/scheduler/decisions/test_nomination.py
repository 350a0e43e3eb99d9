"""Nominations of waiting pods: for which, where, in which order, and how each ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scheduler.core.place import Placement
from scheduler.decisions import nomination
from scheduler.decisions.nomination import (
    DEADLINE_S,
    REFRESH_S,
    TURN_S,
    WINDOW,
    WRITE_S,
    Backlog,
    Nomination,
    Outcome,
    When,
)
from scheduler.decisions.verbs import Verbs
from scheduler.kubernetes.waiting import waiting
from tests.scheduler import calls, objects
from tests.scheduler.calls import arguments, names
from tests.scheduler.decisions.test_verbs import WHOLE, chosen

OURS = [
    {
        "manager": "gpuslice-scheduler",
        "subresource": "status",
        "fieldsV1": {"f:status": {"f:nominatedNodeName": {}}},
    }
]
HEAD = round(WRITE_S / TURN_S) + 1
"""Pods that kube-scheduler is assumed to try before a nomination is written."""
TINY = objects.container("main", core=1, ratio=1)


class Cluster:
    """Nodes with GPUs, and a backlog of pods of one kind. time is the test's."""

    def __init__(self, when: When = When.ALWAYS, nodes: int = 6, gpus: int = 2) -> None:
        self.now_s = 100.0
        self.state = calls.state(nodes, gpus)
        self.backlog = Backlog(self.state, lambda: self.now_s, when)
        self.verbs = Verbs(self.state, backlog=self.backlog)
        self.nodes = nodes

    def comes(self, uid: str, *containers: Any, priority: int = 0, **fields: Any) -> dict[str, Any]:
        raw = calls.pod(uid, *containers)
        raw["spec"] |= {"priority": priority, **fields.pop("spec", {})}
        for key, more in fields.items():
            raw[key] |= more
        self.backlog.see(waiting(raw))
        return raw

    def many(self, count: int, *containers: Any, **fields: Any) -> list[dict[str, Any]]:
        return [self.comes(f"p{number}", *containers, **fields) for number in range(count)]

    def tries(self, raw: dict[str, Any], *among: str) -> list[str]:
        answer = json.loads(self.verbs.filter(arguments(raw, among or names(self.nodes))))
        found = answer["NodeNames"]
        assert isinstance(found, list)
        return found

    def reserved(self, raw: dict[str, Any], node: str | None) -> Placement | None:
        pending = waiting(raw).pending
        assert node is not None and pending.request is not None
        return self.state.reservations.placement(pending.uid, pending.request, node)

    def plan(self, most: int = 1000) -> list[Nomination]:
        return list(self.backlog.plan(most, lambda: False))

    def planned(self, most: int = 1000) -> dict[str, str | None]:
        return {each.pending.uid: each.node for each in self.plan(most)}

    def learned(self, *containers: Any) -> None:
        """kube-scheduler has tried one pod of the kind, which then left."""
        self.tries(self.comes("first", *containers))
        self.state.reservations.end("first")
        self.backlog.forget("first")


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
        (When.BACKLOG, HEAD, 0),
        (When.BACKLOG, HEAD + 2, 2),
        (When.ALWAYS, 1, 1),
        (When.OFF, 8, 0),
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
    least = {**nomination._LEAST_NODES, When.BACKLOG: 1}
    monkeypatch.setattr(nomination, "_LEAST_NODES", least)


def test_pods_that_kube_scheduler_reaches_before_the_write_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many as it tries, at its pace, while a nomination is written."""
    in_small_fleets(monkeypatch)
    cluster = Cluster(When.BACKLOG, nodes=40)
    cluster.learned()
    pods = cluster.many(80, TINY)
    for raw in pods[:40]:
        cluster.now_s += 0.02
        cluster.tries(raw)
    (first,) = cluster.plan(1)
    assert first.pending.uid == "p44"
    cluster.now_s += 0.2
    cluster.backlog.written("p44", "1", "2")
    assert list(cluster.planned(2)) == ["p46", "p47"]


@pytest.mark.parametrize(("count", "waited_s", "left"), [(12, 0.2, 6), (12, 0.3, 0), (8, 0.3, 6)])
def test_no_pod_is_left_where_kube_scheduler_rests(
    count: int, waited_s: float, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped, or tries other pods first. A few pods are left to it all the same."""
    in_small_fleets(monkeypatch)
    cluster = Cluster(When.BACKLOG)
    cluster.learned(TINY)
    cluster.now_s += 1
    pods = cluster.many(count, TINY)
    cluster.now_s += waited_s
    assert len(cluster.planned()) == count - left
    cluster.tries(pods[0])
    assert cluster.planned() == {}


def test_quick_turns_of_nominated_pods_do_not_leave_more_to_kube_scheduler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It must search for those that are left, which takes ten times as long."""
    in_small_fleets(monkeypatch)
    cluster = Cluster(When.BACKLOG, nodes=40)
    cluster.learned()
    pods = cluster.many(120, TINY)
    for raw in pods[:44]:
        cluster.now_s += 0.02
        cluster.tries(raw)
    planned = cluster.plan(20)
    for each in planned:
        cluster.now_s += 0.002
        assert each.node is not None
        cluster.tries(pods[int(each.pending.uid[1:])], each.node)
    last = int(planned[-1].pending.uid[1:])
    (first,) = cluster.plan(1)
    assert int(first.pending.uid[1:]) <= last + HEAD


def test_in_a_small_fleet_no_write_is_spent() -> None:
    cluster = Cluster(When.BACKLOG)
    cluster.learned()
    cluster.many(20)
    assert cluster.plan() == []


def test_a_binding_names_the_version_after_the_nomination(cluster: Cluster) -> None:
    """kube-scheduler may send the pod as it was before."""
    cluster.learned()
    pods = cluster.many(4)
    node = cluster.planned()["p0"]
    assert node is not None
    cluster.tries(pods[0], node)
    cluster.backlog.written("p0", "1", "7")
    pending = cluster.verbs.pending_pod("p0")
    assert pending is not None and pending.version == "7"
    cluster.tries(pods[1] | {"metadata": pods[1]["metadata"] | {"resourceVersion": "9"}}, node)
    cluster.backlog.written("p1", "1", "7")
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
    cluster.backlog.see(waiting(pods[0]))
    cluster.now_s += DEADLINE_S - 0.1
    assert cluster.plan() == []
    cluster.now_s += 0.2
    withdrawn = cluster.plan()
    assert [(each.pending.uid, each.pending.version, each.node) for each in withdrawn] == [
        ("p0", "2", None)
    ]
    assert cluster.state.fleet.free_bytes.sum() > free
    assert cluster.backlog.counts[Outcome.EXPIRED] == 4
    assert cluster.plan() == []


def test_a_nomination_of_an_earlier_process_is_withdrawn(cluster: Cluster) -> None:
    cluster.comes("left", metadata={"managedFields": OURS}, status={"nominatedNodeName": "n1"})
    theirs = [{**OURS[0], "manager": "kube-scheduler"}]
    cluster.comes("theirs", metadata={"managedFields": theirs}, status={"nominatedNodeName": "n1"})
    cluster.now_s += DEADLINE_S + 1
    assert cluster.planned() == {"left": None}


def test_a_failed_write_frees_the_gpus_and_leaves_the_pod_to_kube_scheduler(
    cluster: Cluster,
) -> None:
    cluster.learned()
    cluster.many(4)
    free = cluster.state.fleet.free_bytes.sum()
    for uid in cluster.planned():
        cluster.backlog.failed(uid)
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
    cluster.tries(pods[0], "n5")
    for number in range(6, 12):
        cluster.comes(f"p{number}", TINY)
    assert set(cluster.planned().values()) == {"n5"}
