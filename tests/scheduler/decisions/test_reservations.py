"""Reservations lower a node's score for other pods, but no pod is refused because of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gpuslice.kube.errors import KubeError
from scheduler.binder import Binder
from scheduler.core.reservations import Kind
from scheduler.decisions.verbs import Verbs
from scheduler.kubernetes import translate
from scheduler.kubernetes.arguments import BindingArguments
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

    def named(self, uid: str, among: Sequence[str] = BOTH, of: dict[str, Any] = WHOLE) -> list[str]:
        found = calls.filtered(self.verbs, calls.pod(uid, of), among)["NodeNames"]
        assert isinstance(found, list)
        return found

    def ranked(self, uid: str, among: Sequence[str] = BOTH, of: dict[str, Any] = WHOLE) -> None:
        """Rank as kube-scheduler does: filter, then prioritize of the returned nodes."""
        self.verbs.prioritize(calls.arguments(calls.pod(uid, of), self.named(uid, among, of)))

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


def test_the_node_of_the_best_score_is_reserved() -> None:
    scene = Scene()
    calls.hold(scene.state, "other", "n1", 0, 10)
    scene.ranked("a", of=SMALL)
    assert scene.reserved == (0, 30)


def test_a_reservation_refuses_no_pod_and_stays(scene: Scene) -> None:
    scene.ranked("b", ["n1"])
    assert scene.named("c") == BOTH
    assert (scene.used, scene.reserved) == ((0, 0), (100, 100))


def test_a_pod_that_fits_nowhere_takes_no_reservation_from_others(scene: Scene) -> None:
    """Neither retries of a pod that never fits nor a simulated preemption end reservations."""
    for _ in range(3):
        assert scene.named("big", of=objects.container("main", gpu=1600)) == []
    assert list(calls.preempted(scene.verbs, calls.pod("high", WHOLE), {"n0": []})) == ["n0"]
    assert scene.named("b") == ["n1"]
    assert [scene.bind("b", "n1"), scene.bind("a", "n0")] == ["", ""]


def test_a_bind_without_a_reservation_ends_those_that_no_longer_fit() -> None:
    scene = Scene()
    for uid in ("a", "b", "c"):
        scene.ranked(uid, ["n0"], SMALL)
    scene.named("late", of=SMALL)
    scene.state.reservations.end("late")
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
    "some seconds pass": lambda scene: scene.state.tick(Kind.RANKED.value),
    "the pod is bound elsewhere": lambda scene: scene.bind("a", "n1"),
}


@pytest.mark.parametrize("why", ENDS)
def test_a_reservation_ends_when(scene: Scene, why: str) -> None:
    scene.state.tick(Kind.RANKED.value / 2)
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
