"""For which waiting pods a nomination is written, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.decisions import backlog
from scheduler.decisions.backlog import WINDOW
from scheduler.decisions.nomination import When
from scheduler.decisions.pace import FEW
from tests.scheduler import objects
from tests.scheduler.decisions.backlog_scene import TINY, Cluster


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
    cluster.tried_first()
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
    cluster.tried_first(TINY)
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
        cluster.backlog.remove(f"first{at}")
    for at, spec in enumerate(zones):
        cluster.comes(f"p{at}", TINY, spec=spec)
    assert not cluster.backlog.may_go_on(0)
    assert list(cluster.planned()) == [f"p{at}" for at in range(1, FEW + 2)]


def test_pods_that_come_behind_nominated_ones_are_nominated_however_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_small_fleets(monkeypatch)
    cluster = Cluster(When.BACKLOG)
    cluster.tried_first(TINY)
    cluster.many(FEW + 1, TINY)
    cluster.plan()
    cluster.comes("late", TINY)
    assert "late" in cluster.planned()


def test_in_a_small_fleet_no_write_is_spent() -> None:
    cluster = Cluster(When.BACKLOG)
    cluster.tried_first()
    cluster.many(20)
    assert cluster.plan() == []


def test_pods_are_nominated_in_the_order_of_kube_schedulers_queue(cluster: Cluster) -> None:
    cluster.tried_first()
    cluster.comes("late", metadata={"creationTimestamp": "2026-01-01T00:00:02Z"})
    cluster.comes("low", priority=-1)
    cluster.comes("early", metadata={"creationTimestamp": "2026-01-01T00:00:01Z"})
    cluster.comes("high", priority=5)
    assert list(cluster.planned()) == ["high", "early", "late", "low"]


def test_the_window_ahead_of_kube_scheduler_is_bounded() -> None:
    cluster = Cluster(nodes=3, gpus=2)
    cluster.tried_first(TINY)
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
    cluster.tried_first(TINY)
    cluster.many(WINDOW, TINY)
    assert len(cluster.plan()) == WINDOW
    for number in range(12):
        cluster.comes(f"high{number}", TINY, priority=5)
    assert len(cluster.planned(8)) == 8
    assert list(cluster.planned()) == ["high8", "high9"]


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
    cluster.tried_first()
    cluster.comes("gated", spec={"schedulingGates": [{"name": "queue"}]})
    assert cluster.plan() == []
    cluster.comes("gated")
    assert set(cluster.planned()) == {"gated"}


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
    cluster.tried_first()
    cluster.many(4)
    cluster.comes("other", metadata={"namespace": "research"})
    planned = cluster.backlog.plan(1000, lambda: False, {"default"})
    assert [each.pending.uid for each in planned] == ["other"]
