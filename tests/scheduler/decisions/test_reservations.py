"""A chosen GPU is reserved until the bind call. Only a pod of higher priority gets it before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pytest

from gpuslice.kube.errors import KubeError
from scheduler.binder import Binder
from scheduler.core.reservations import Kind, Nomination
from scheduler.decisions.verbs import Verbs
from scheduler.kubernetes import requests, translate
from scheduler.kubernetes.arguments import BindingArguments
from scheduler.kubernetes.leases import agent_lease
from tests.scheduler import calls, objects
from tests.scheduler.lease_guards import ManualLeaseGuard

WHOLE = objects.container("main", gpu=100)
SMALL = objects.container("main", core=30, ratio=30)
BOTH = ["n0", "n1"]


class _AcceptingClient:
    """An API server that accepts every Binding and has no pods."""

    async def get(self, path: str, *, timeout_s: float = 0.0) -> Any:
        raise KubeError(404, "NotFound", "")

    async def post(self, path: str, body: Any, *, timeout_s: float = 0.0, **query: object) -> Any:
        return {}


class Scene:
    """Two nodes of one GPU each. By default a pod requests a whole GPU."""

    def __init__(self) -> None:
        self.state = calls.state(nodes=2, gpus=1)
        self.verbs = Verbs(self.state)
        self.binder = Binder(
            self.state, _AcceptingClient(), ManualLeaseGuard(), self.verbs, lambda: 0.0
        )

    def named(
        self, uid: str, among: Sequence[str] = BOTH, of: dict[str, Any] = WHOLE, priority: int = 0
    ) -> list[str]:
        raw = calls.pod(uid, of, priority=priority)
        found = calls.filtered(self.verbs, raw, among)["NodeNames"]
        assert isinstance(found, list)
        return found

    def ranked(self, uid: str, among: Sequence[str] = BOTH, of: dict[str, Any] = WHOLE) -> None:
        """Rank as kube-scheduler does: filter, then prioritize of the returned nodes."""
        self.verbs.prioritize(calls.arguments(calls.pod(uid, of), self.named(uid, among, of)))

    def nominate(self, uid: str, node: str) -> None:
        """Let the watch report the nomination of a pod that requests a whole GPU."""
        asked = requests.request(calls.pod(uid, WHOLE))
        assert asked is not None
        self.state.reservations.nominate(uid, Nomination(node, asked, 0))

    def pass_time(self, now_s: float) -> None:
        """Let time pass while the agents renew their Leases."""
        for name in BOTH:
            facts = agent_lease(objects.lease(name, int(now_s)))
            assert facts is not None
            self.state.observe_lease(facts, now_s)
        self.state.tick(now_s)

    def bind(self, uid: str, node: str) -> str:
        wanted = BindingArguments("default", f"pod-{uid}", uid, node)
        return asyncio.run(self.binder.bind(wanted)).error

    def percent(self, column: str) -> tuple[int, int]:
        """Return the column's value for each node's GPU."""
        rows = self.state.fleet.rows_of(BOTH)
        first, second = getattr(self.state.fleet, column)[rows, 0].tolist()
        return first, second

    @property
    def used(self) -> tuple[int, int]:
        return self.percent("used_core")

    @property
    def reserved(self) -> tuple[int, int]:
        return self.percent("reserved_core")


@pytest.fixture
def scene() -> Scene:
    """A scene in which the pod `a` has a reservation on n0."""
    scene = Scene()
    scene.ranked("a", ["n0"])
    return scene


@pytest.mark.parametrize("ranks", [True, False], ids=["ranked", "a single feasible node"])
def test_the_next_pod_is_placed_beside_one_that_is_not_bound_yet(ranks: bool) -> None:
    """If only one node is feasible, kube-scheduler does not call prioritize."""
    scene = Scene()
    tried = scene.ranked if ranks else scene.named
    tried("a", ["n0"])
    tried("b")
    assert scene.named("b") == ["n1"]
    assert [scene.bind("b", "n1"), scene.bind("a", "n0")] == ["", ""]
    assert scene.used == (100, 100)


def test_of_equal_nodes_only_the_reserved_one_has_the_highest_score() -> None:
    """kube-scheduler picks any of those with the highest score."""
    scene = Scene()
    pod = calls.arguments(calls.pod("a", SMALL), BOTH)
    scores = {each["Host"]: each["Score"] for each in orjson.loads(scene.verbs.prioritize(pod))}
    assert (sorted(scores.values()), scene.reserved) == ([9, 10], (30, 0))
    assert scores["n0"] == 10


def test_the_node_of_the_best_score_is_reserved() -> None:
    scene = Scene()
    calls.hold(scene.state, "other", "n1", 0, 10)
    scene.ranked("a", of=SMALL)
    assert scene.reserved == (0, 30)


def test_a_gpu_is_reserved_for_ten_minutes_and_then_handed_over(scene: Scene) -> None:
    """kube-scheduler binds the pod `a` only when its volume exists, here at the node n0."""
    for now_s in (0.0, 2.0, 30.0, 599.0):
        scene.pass_time(now_s)
        assert scene.named("b", ["n0"]) == []
        assert scene.bind("b", "n0") == "node n0: no GPU with enough free memory and core at once"
    scene.pass_time(Kind.RANKED.value)
    assert scene.named("b", ["n0"]) == ["n0"]
    assert scene.bind("a", "n0").startswith("node n0: ")
    assert [scene.bind("b", "n0"), scene.used] == ["", (100, 0)]


def test_the_reservation_follows_the_node_that_kube_scheduler_nominates(scene: Scene) -> None:
    """Of nodes with equal scores kube-scheduler may choose another one than the extender."""
    scene.nominate("a", "n1")
    assert scene.reserved == (0, 100)
    scene.pass_time(599.0)
    assert [scene.named("b"), scene.named("c", ["n1"])] == [["n0"], []]
    scene.pass_time(Kind.RANKED.value)
    assert scene.named("c", ["n1"]) == ["n1"]


@pytest.mark.parametrize("ends", ["deleted", "bound elsewhere", "tried elsewhere"])
def test_a_nominated_pod_gets_its_gpu_again_when_one_of_higher_priority_leaves_it(
    ends: str,
) -> None:
    scene = Scene()
    scene.nominate("low", "n0")
    assert scene.named("high", ["n0"], priority=2) == ["n0"]
    if ends == "deleted":
        scene.state.reservations.forget("high")
    elif ends == "bound elsewhere":
        assert scene.bind("high", "n1") == ""
    else:
        assert scene.named("high", ["n1"], priority=2) == ["n1"]
    assert scene.reserved[0] == 100
    assert scene.named("newcomer", ["n0"]) == []


def test_a_bind_gives_the_reserved_gpu_to_no_waiting_nomination() -> None:
    scene = Scene()
    scene.nominate("low", "n0")
    assert scene.named("high", ["n0"], priority=2) == ["n0"]
    assert [scene.bind("high", "n0"), scene.used, scene.reserved] == ["", (100, 0), (0, 0)]


def test_ten_minutes_begin_again_with_the_pods_next_try(scene: Scene) -> None:
    scene.nominate("a", "n1")
    scene.pass_time(500.0)
    assert scene.named("a", ["n1"]) == ["n1"]
    scene.pass_time(500.0 + 599.0)
    assert scene.reserved == (0, 100)
    scene.pass_time(500.0 + 600.0)
    assert scene.reserved == (0, 0)


def test_a_pod_of_higher_priority_takes_a_reserved_gpu(scene: Scene) -> None:
    assert scene.named("high", priority=1) == ["n1"], "unreserved GPUs come first"
    assert scene.named("higher", ["n0"], priority=1) == ["n0"]
    assert scene.bind("a", "n0").startswith("node n0: ")
    assert [scene.bind("higher", "n0"), scene.used] == ["", (100, 0)]


def test_a_pod_that_fits_nowhere_takes_no_reservation_from_others(scene: Scene) -> None:
    """Neither retries of a pod that never fits nor another's preemption end reservations."""
    for _ in range(3):
        assert scene.named("big", of=objects.container("main", gpu=1600), priority=9) == []
    assert calls.preempted(scene.verbs, calls.pod("equal", WHOLE), {"n0": ["x"]}) == {}
    assert scene.named("b") == ["n1"]
    assert [scene.bind("b", "n1"), scene.bind("a", "n0")] == ["", ""]


def test_a_bind_without_a_reservation_ends_those_that_no_longer_fit() -> None:
    scene = Scene()
    for uid in ("a", "b", "c"):
        scene.ranked(uid, ["n0"], SMALL)
    late = calls.arguments(calls.pod("late", SMALL, priority=1), BOTH)
    scene.verbs._store(scene.verbs._reader.arguments(late)[0])
    assert scene.bind("late", "n0") == ""
    assert (scene.used, scene.reserved) == ((30, 0), (60, 0))


def test_a_pod_whose_request_has_changed_is_placed_again(scene: Scene) -> None:
    scene.named("b")
    less = calls.arguments(calls.pod("a", SMALL), BOTH)
    scene.verbs._store(scene.verbs._reader.arguments(less)[0])
    assert scene.bind("a", "n0") == ""
    assert scene.used == (30, 0)


def test_a_pod_that_is_bound_gets_no_reservation(scene: Scene) -> None:
    assert scene.bind("a", "n0") == ""
    scene.verbs.prioritize(calls.arguments(calls.pod("a", WHOLE), ["n1"]))
    assert (scene.used, scene.reserved) == ((100, 0), (0, 0))


ENDS: dict[str, Callable[[Scene], object]] = {
    "it is asked for again": lambda scene: scene.named("a"),
    "another is bound there by hand": lambda scene: calls.hold(scene.state, "hand", "n0", 0, 10),
    "its node changes": lambda scene: scene.state.observe_node(
        translate.node(objects.node("n0", cordoned_gpus="GPU-n0-0"))
    ),
    "its node is gone": lambda scene: scene.state.remove_node("n0"),
    "its node's GPUs are gone": lambda scene: scene.state.remove_device("n0"),
    "its node's agent is gone": lambda scene: scene.state.remove_lease("n0"),
    "ten minutes pass": lambda scene: scene.pass_time(Kind.RANKED.value),
    "the pod is bound elsewhere": lambda scene: scene.bind("a", "n1"),
}


@pytest.mark.parametrize("why", ENDS)
def test_a_reservation_ends_when(scene: Scene, why: str) -> None:
    scene.pass_time(Kind.RANKED.value / 2)
    assert scene.reserved == (100, 0)
    ENDS[why](scene)
    assert not len(scene.state.reservations)
    assert not scene.state.fleet.reserved_core.any()
    assert not scene.state.fleet.reserved_bytes.any()
    if why.endswith("elsewhere"):
        assert scene.used == (0, 100)


@pytest.mark.parametrize("gone", ["its node is gone", "its node's agent is gone"])
def test_no_pod_is_bound_to_a_node_that_has_become_unusable(scene: Scene, gone: str) -> None:
    ENDS[gone](scene)
    assert scene.bind("a", "n0").startswith("node n0: ")
