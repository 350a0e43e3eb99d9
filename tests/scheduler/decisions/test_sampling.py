"""Pods that fit only on nodes outside of the sample that kube-scheduler sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pytest

from gpuslice.contract import names as words
from scheduler.decisions.requeue import TIMEOUT_S, Unschedulable
from scheduler.decisions.sampling import Requeue, Sampling, sample_size
from scheduler.decisions.verbs import Verbs
from tests.scheduler import calls, objects

_NODES: Final = calls.names(250)
SAMPLE: Final = _NODES[:120]
"""The sample of kube-scheduler, 48 percent of 250 nodes."""
BIG: Final = objects.container("main", core=80, ratio=80)


class Scene:
    """Nodes of one GPU, filled to 60 percent except for the nodes `free` (n200 and n245)."""

    def __init__(self, *free: str) -> None:
        self.state = calls.state(nodes=len(_NODES), gpus=1)
        for name in _NODES:
            if name not in (free or ("n200", "n245")):
                calls.hold(self.state, f"on-{name}", name, 0, 60)
        self.missed: list[Requeue] = []
        self.writes = 0
        self.sampling = Sampling(self.state, self.missed.append)
        self.queue = Unschedulable(self.state)
        self.verbs = Verbs(self.state, retries=self.queue, sampling=self.sampling)

    def ask(
        self, sent: Sequence[str] = SAMPLE, nominated: object = "", uid: str = "a", **spec: Any
    ) -> Any:
        """Return the nodes that `filter` answers. The pod includes the extender's last write."""
        raw = calls.pod(uid, BIG, annotations={words.ANNOTATION_REQUEUED_AT: str(self.writes)})
        raw["spec"] |= spec
        raw["status"] = {"nominatedNodeName": str(nominated)} if nominated else {}
        return calls.filtered(self.verbs, raw, sent)["NodeNames"]

    def due(self) -> list[str | None]:
        """Take the pending writes to pods, and return the nodes that they nominate."""
        nominated = [each.nominated for each in self.missed]
        self.missed.clear()
        self.writes += bool(nominated)
        return nominated

    def reserved(self, uid: str = "a") -> str:
        return self.state.reservations.sampled_node(uid)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_the_size_of_a_sample_is_kube_schedulers() -> None:
    """Source: numFeasibleNodesToFind in pkg/scheduler/schedule_one.go of Kubernetes."""
    sizes = {100: 100, 200: 100, 250: 120, 1000: 420, 5000: 500, 9000: 450}
    assert {nodes: sample_size(nodes) for nodes in sizes} == sizes


def test_the_node_outside_of_the_sample_is_nominated_and_its_gpu_reserved(scene: Scene) -> None:
    assert scene.ask() == []
    node = str(scene.missed.pop().nominated)
    assert node in ("n200", "n245") and scene.reserved() == node
    assert scene.ask(uid="b") == []
    assert {node, scene.reserved("b")} == {"n200", "n245"}
    assert scene.ask([node], nominated=node) == [node]
    assert scene.due() == [scene.reserved("b")]


def test_until_kube_scheduler_has_received_the_write_nothing_more_is_written(scene: Scene) -> None:
    scene.ask()
    requeued = scene.missed.pop()
    assert scene.ask() == [] and scene.due() == []
    assert scene.reserved() == requeued.nominated
    assert scene.ask(_NODES[130:]) == [requeued.nominated]


def test_a_nomination_that_kube_scheduler_removed_is_written_again(scene: Scene) -> None:
    """kube-scheduler removes a nomination that it receives during an attempt for the pod."""
    scene.ask()
    (node,) = scene.due()
    for _ in range(5):
        assert scene.ask() == [] and scene.due() == [node]
    assert scene.ask([str(node)], nominated=node) == [node]


def test_a_write_that_failed_is_due_again_and_no_pod_is_evicted_before(scene: Scene) -> None:
    victims = {"n0": ["on-n0"]}
    scene.ask()
    requeued = scene.missed.pop()
    assert calls.preempted(scene.verbs, calls.pod("a", BIG, priority=1), victims) == {}
    scene.sampling.failed("a")
    assert scene.reserved() == ""
    assert calls.preempted(scene.verbs, calls.pod("a", BIG, priority=1), victims) == calls.metas(
        victims
    )
    scene.ask()
    assert scene.due() == [requeued.nominated]


def test_fewer_nodes_than_a_sample_are_all_that_kube_scheduler_accepts() -> None:
    for sent, due in ((SAMPLE[:100], []), (_NODES[:245], ["n249"])):
        scene = Scene("n249")
        assert scene.ask(sent, priority=5) == []
        assert (scene.due(), scene.reserved()) == (due, "".join(due))


def test_nodes_that_kube_scheduler_sent_for_equal_constraints_are_nominated_first() -> None:
    for zone, accepted, expected in (
        ("east", _NODES[125:245], "n127"),
        ("west", _NODES[130:250], "n247"),
    ):
        scene = Scene("n127", "n247")
        scene.ask(accepted, uid="earlier", nodeSelector={"zone": zone})
        scene.state.reservations.end("earlier")
        scene.ask(nodeSelector={"zone": zone})
        assert scene.reserved() == expected


def test_a_node_that_kube_scheduler_refuses_is_not_nominated_again(scene: Scene) -> None:
    scene.ask()
    (first,) = scene.due()
    scene.ask(nominated=first)
    (second,) = scene.due()
    assert {first, second} == {"n200", "n245"}
    scene.ask(nominated=second)
    assert scene.due() == [""], "the nomination is removed"
    assert scene.reserved() == ""
    assert scene.ask() == [] and scene.due() == []


def test_as_many_refusals_as_samples_end_the_nominations() -> None:
    scene = Scene(*_NODES[200:])
    nominated: str | None = ""
    for _ in range(3):
        scene.ask(nominated=nominated)
        (nominated,) = scene.due()
        assert nominated
    scene.ask(nominated=nominated)
    assert scene.due() == [""]


def test_only_a_pod_that_may_preempt_is_requeued_if_it_fits_nowhere() -> None:
    scene = Scene("none")
    scene.ask()
    assert scene.due() == []
    for _ in range(3):
        scene.ask(uid="urgent", priority=1)
        assert scene.due() == [None]
    scene.ask(uid="urgent", priority=1)
    assert scene.due() == [], "kube-scheduler has seen all nodes"


def test_capacity_on_a_node_of_an_earlier_sample_makes_a_pod_due() -> None:
    scene = Scene("none")
    scene.ask(_NODES[120:240])
    scene.ask()
    for gone, expected in (("on-n249", []), ("on-n130", ["a"])):
        scene.state.remove_pod(gone)
        assert calls.due(scene.queue, 1.0) == []
        assert calls.due(scene.queue, 1.0 + TIMEOUT_S) == expected
