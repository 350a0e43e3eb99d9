"""Nominations of waiting pods: for which, where, in which order, and how each ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scheduler.core.place import Placement
from scheduler.core.reservations import Kind
from scheduler.decisions import backlog
from scheduler.decisions.backlog import REFRESH_S, RETRY_S, WINDOW, Backlog
from scheduler.decisions.nomination import Nomination, Outcome, When
from scheduler.decisions.pace import FEW, LEAD, MAX_BINDING, MAX_HOLD_S, SEARCH_S
from scheduler.decisions.pod_kinds import MAX_KINDS
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
        self.backlog.observe(waiting(raw))
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


def received(cluster: Cluster, nomination: Nomination) -> None:
    """The watch reports the pod with its nomination."""
    uid, status = nomination.pending.uid, {"nominatedNodeName": nomination.node}
    cluster.comes(uid, TINY, status=status, metadata={"managedFields": OURS})


def test_kube_scheduler_is_held_back_until_it_has_received_enough_nominations(
    cluster: Cluster,
) -> None:
    """Not merely written: it searches all nodes for a pod whose nomination it has not received."""
    cluster.learned(TINY)
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
    cluster.learned(TINY)
    cluster.many(pods, TINY)
    assert cluster.backlog.may_go_on(0) is not is_held
    for number in range(pods):
        cluster.backlog.forget(f"p{number}")
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
    cluster.learned(TINY)
    for raw in cluster.many(80, TINY):
        cluster.now_s += search_s
        cluster.tries(raw)
        cluster.now_s += 0.05
        cluster.backlog.answered()
    saved_one(cluster, took_s=0.001)
    assert cluster.backlog.hold_s(0) == pytest.approx(most_s - 0.001, rel=0.01)


def test_kube_scheduler_is_held_back_while_many_bindings_are_in_progress(cluster: Cluster) -> None:
    cluster.learned(TINY)
    raw = cluster.comes("p0", TINY)
    node = cluster.planned()["p0"]
    assert node is not None
    cluster.tries(raw, node)
    assert cluster.backlog.hold_s(MAX_BINDING) == 0
    assert cluster.backlog.hold_s(MAX_BINDING + 1) > 0


def test_a_pod_for_which_no_nomination_saved_a_search_is_not_held_back(cluster: Cluster) -> None:
    """Else, where the API server takes seconds to refuse the writes, it would wait twice as
    long."""
    cluster.learned(TINY)
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
    cluster.learned(TINY)
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
    cluster.learned(TINY)
    cluster.many(4, TINY)
    planned = cluster.plan()
    for each in planned:
        received(cluster, each)
    assert cluster.backlog.may_go_on(0)
    raw = cluster.comes("p1", TINY)
    assert cluster.backlog.may_go_on(0)
    assert cluster.tries(raw) == [planned[1].node]


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


def test_nominations_of_lower_priority_are_no_reason_to_answer(cluster: Cluster) -> None:
    cluster.learned(TINY)
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
