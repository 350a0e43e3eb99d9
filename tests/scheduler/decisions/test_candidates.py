"""The nodes that pods are nominated for: those that kube-scheduler accepted for such a pod."""

from __future__ import annotations

from scheduler.decisions.backlog import REFRESH_S
from scheduler.decisions.pod_kinds import MAX_KINDS
from scheduler.kubernetes.waiting import waiting
from tests.scheduler.decisions.backlog_scene import TINY, Cluster


def test_no_pod_is_nominated_before_kube_scheduler_has_shown_the_candidates(
    cluster: Cluster,
) -> None:
    pods = cluster.many(6)
    assert cluster.plan() == []
    cluster.tries(pods[0])
    assert set(cluster.planned()) == {f"p{number}" for number in range(1, 6)}


def test_only_nodes_that_kube_scheduler_accepted_are_nominated(cluster: Cluster) -> None:
    cluster.tries(cluster.comes("first"), "n2", "n4")
    cluster.many(8)
    assert set(cluster.planned().values()) == {"n2", "n4"}


def test_each_kind_of_pod_has_candidates_of_its_own(cluster: Cluster) -> None:
    cluster.tried_first()
    cluster.many(8, spec={"nodeSelector": {"zone": "a"}})
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


def test_the_kinds_with_candidates_are_bounded(cluster: Cluster) -> None:
    for number in range(MAX_KINDS + 20):
        cluster.tries(cluster.comes(f"p{number}", spec={"nodeSelector": {"at": str(number)}}))
        cluster.backlog.remove(f"p{number}")
    assert len(cluster.backlog._kinds) == MAX_KINDS
    cluster.comes("old", spec={"nodeSelector": {"at": "0"}})
    cluster.comes("new", spec={"nodeSelector": {"at": "200"}})
    assert set(cluster.planned()) == {"new"}


def test_candidates_are_renewed_by_leaving_one_pod_to_kube_scheduler(cluster: Cluster) -> None:
    cluster.tried_first(TINY)
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
    cluster.tried_first(TINY)
    cluster.now_s += REFRESH_S + 1
    raw = cluster.comes("left", TINY)
    assert cluster.plan() == []
    cluster.backlog.observe(waiting(raw))
    assert cluster.plan() == []
    cluster.tries(raw, "n4", "n5")
    cluster.comes("next", TINY)
    assert set(cluster.planned().values()) <= {"n4", "n5"}
