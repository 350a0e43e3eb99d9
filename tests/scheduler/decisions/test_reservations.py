"""Reservations: the next pod is ranked beside them, and none is refused because of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gpuslice.contract import names
from gpuslice.kube.errors import KubeError
from scheduler.binder import Binder
from scheduler.core.reservations import Kind
from scheduler.decisions.state import State
from scheduler.decisions.verbs import Verbs
from scheduler.kubernetes import translate
from scheduler.kubernetes.arguments import BindingArguments
from tests.scheduler import calls, objects
from tests.scheduler.lease_guards import ManualLeaseGuard

WHOLE = objects.container("main", gpu=100)
BOTH = ["n0", "n1"]


class _Yes:
    """An API server that accepts every Binding and has no pods."""

    async def get(self, path: str, *, timeout_s: float = 0.0) -> Any:
        raise KubeError(404, "NotFound", "")

    async def post(self, path: str, body: Any, *, timeout_s: float = 0.0, **query: object) -> Any:
        return {}


class Scene:
    """Two nodes of one GPU each."""

    def __init__(self) -> None:
        self.state = calls.state(nodes=2, gpus=1)
        self.verbs = Verbs(self.state)
        self.binder = Binder(self.state, _Yes(), ManualLeaseGuard(), self.verbs, lambda: 0.0)

    def named(self, raw: dict[str, Any], among: Sequence[str] = BOTH) -> list[str]:
        found = calls.loads(self.verbs.filter(calls.arguments(raw, among)))["NodeNames"]
        assert isinstance(found, list)
        return found

    def ranked(self, raw: dict[str, Any], among: Sequence[str] = BOTH) -> None:
        """Rank as kube-scheduler does: filter, then prioritize of the returned nodes."""
        self.verbs.prioritize(calls.arguments(raw, self.named(raw, among)))

    def bind(self, uid: str, node: str) -> str:
        wanted = BindingArguments("default", f"pod-{uid}", uid, node)
        return asyncio.run(self.binder.bind(wanted)).error

    def used(self) -> tuple[int, int]:
        """Percent of both GPUs that pods hold."""
        return self._percent("used_core")

    def reserved(self) -> tuple[int, int]:
        """Percent of both GPUs that is reserved."""
        return self._percent("reserved_core")

    def _percent(self, column: str) -> tuple[int, int]:
        rows = self.state.fleet.rows_of(BOTH)
        first, second = getattr(self.state.fleet, column)[rows, 0].tolist()
        return first, second


@pytest.mark.parametrize("ranks", [True, False], ids=["ranked", "a single feasible node"])
def test_the_next_pod_is_placed_beside_the_one_before_it_though_that_is_not_bound_yet(
    ranks: bool,
) -> None:
    """kube-scheduler sends no prioritize for a single feasible node."""
    scene = Scene()
    tried = scene.ranked if ranks else scene.named
    tried(calls.pod("a", WHOLE), ["n0"])
    tried(calls.pod("b", WHOLE))
    assert scene.named(calls.pod("b", WHOLE)) == ["n1"]
    assert [scene.bind("b", "n1"), scene.bind("a", "n0")] == ["", ""]
    assert scene.used() == (100, 100)


def test_a_reservation_refuses_no_pod_and_stays() -> None:
    scene = Scene()
    for uid, node in (("a", "n0"), ("b", "n1")):
        scene.ranked(calls.pod(uid, WHOLE), [node])
    assert scene.named(calls.pod("c", WHOLE)) == BOTH
    assert (scene.used(), scene.reserved()) == ((0, 0), (100, 100))


def test_a_pod_that_fits_nowhere_takes_no_reservation_from_others() -> None:
    """Each bind arrives after the next filter; an unsatisfiable pod is retried in between."""
    scene = Scene()
    scene.ranked(calls.pod("a", WHOLE), ["n0"])
    for _ in range(3):
        assert scene.named(calls.pod("big", objects.container("main", gpu=1600))) == []
    high = calls.preemption(calls.pod("high", WHOLE), {"n0": []})
    assert list(calls.loads(b"".join(scene.verbs.preempt(high)))["NodeNameToMetaVictims"]) == ["n0"]
    assert scene.named(calls.pod("b", WHOLE)) == ["n1"]
    assert [scene.bind("b", "n1"), scene.bind("a", "n0")] == ["", ""]


def test_a_bind_without_a_reservation_ends_those_that_no_longer_fit() -> None:
    scene = Scene()
    small = objects.container("main", core=30, ratio=30)
    for uid in ("a", "b", "c"):
        scene.ranked(calls.pod(uid, small), ["n0"])
    scene.verbs.filter(calls.arguments(calls.pod("late", small), BOTH))
    scene.state.reservations.end("late")
    assert scene.bind("late", "n0") == ""
    assert (scene.used(), scene.reserved()) == ((30, 0), (60, 0))


def test_the_pod_that_is_bound_first_has_the_capacity() -> None:
    scene = Scene()
    scene.ranked(calls.pod("a", WHOLE), ["n0"])
    scene.verbs.filter(calls.arguments(calls.pod("b", WHOLE), ["n0"]))
    scene.ranked(calls.pod("a", WHOLE), ["n0"])
    assert scene.bind("b", "n0") == ""
    assert scene.bind("a", "n0").startswith("node n0: no GPU with enough")
    assert scene.used() == (100, 0)


def test_a_pod_that_is_bound_to_another_node_has_no_reservation_left() -> None:
    scene = Scene()
    scene.ranked(calls.pod("a", WHOLE), ["n0"])
    assert scene.bind("a", "n1") == ""
    assert scene.used() == (0, 100)


def test_a_pod_whose_request_has_changed_is_placed_again() -> None:
    scene = Scene()
    scene.ranked(calls.pod("a"), ["n0"])
    scene.verbs.filter(calls.arguments(calls.pod("b"), BOTH))
    less = calls.pod("a", objects.container("main", core=30, ratio=30))
    scene.verbs._store(scene.verbs._reader.arguments(calls.arguments(less, BOTH))[0])
    assert scene.bind("a", "n0") == ""
    assert scene.used() == (30, 0)


def test_a_pod_that_is_bound_gets_no_reservation() -> None:
    scene = Scene()
    scene.ranked(calls.pod("a"), ["n0"])
    assert scene.bind("a", "n0") == ""
    scene.verbs.prioritize(calls.arguments(calls.pod("a"), ["n1"]))
    assert scene.used() == (50, 0)


def _by_hand(state: State) -> None:
    held = objects.allocated(("GPU-n0-0", 0, objects.resources(core=10, memory="1Gi")))
    annotations = {names.ANNOTATION_DEVICE_ALLOCATED: held}
    state.observe_pod(translate.pod(calls.pod("hand", node="n0", annotations=annotations)))


ENDS: dict[str, Callable[[Scene], object]] = {
    "it is asked for again": lambda scene: scene.named(calls.pod("a", WHOLE)),
    "another is bound there by hand": lambda scene: _by_hand(scene.state),
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
def test_a_reservation_ends_when(why: str) -> None:
    scene = Scene()
    scene.ranked(calls.pod("a", WHOLE), ["n0"])
    scene.state.tick(Kind.RANKED.value / 2)
    assert scene.reserved() == (100, 0)
    ENDS[why](scene)
    assert not len(scene.state.reservations)
    assert not scene.state.fleet.reserved_core.any()
    assert not scene.state.fleet.reserved_bytes.any()


@pytest.mark.parametrize("gone", ["its node is gone", "its node's agent is gone"])
def test_no_pod_is_bound_to_a_node_that_has_become_unusable(gone: str) -> None:
    scene = Scene()
    scene.ranked(calls.pod("a", WHOLE), ["n0"])
    ENDS[gone](scene)
    assert scene.bind("a", "n0").startswith("node n0: ")
