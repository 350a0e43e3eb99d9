"""Room that a pod is expected to take: the next pod is ranked beside it, and nobody is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kube.client import KubeError
from scheduler import translate
from scheduler.arguments import BindingArguments
from scheduler.binder import Binder
from scheduler.state import State
from scheduler.tentative import TICKS
from scheduler.verbs import Verbs
from tests.scheduler import calls, objects
from tests.scheduler.gates import HandGate

WHOLE = objects.container("main", gpu=100)
BOTH = ["n0", "n1"]


class _Yes:
    """An API server that binds whatever it is asked to, and knows no pod."""

    async def get(self, path: str, *, timeout_s: float = 0.0) -> Any:
        raise KubeError(404, "NotFound", "")

    async def post(self, path: str, body: Any, *, timeout_s: float = 0.0) -> Any:
        return {}


class Scene:
    """Two nodes of one card each."""

    def __init__(self) -> None:
        self.state = calls.state(nodes=2, cards=1)
        self.verbs = Verbs(self.state)
        self.binder = Binder(self.state, _Yes(), HandGate(), self.verbs, lambda: 0.0)

    def named(self, raw: dict[str, Any], among: Sequence[str] = BOTH) -> list[str]:
        found = calls.loads(self.verbs.filter(calls.arguments(raw, among)))["NodeNames"]
        assert isinstance(found, list)
        return found

    def ranked(self, raw: dict[str, Any], among: Sequence[str] = BOTH) -> None:
        """As kube-scheduler does it: filter, and prioritize of what is named."""
        self.verbs.prioritize(calls.arguments(raw, self.named(raw, among)))

    def bind(self, uid: str, node: str) -> str:
        wanted = BindingArguments("default", f"pod-{uid}", uid, node)
        return asyncio.run(self.binder.bind(wanted))

    def used(self) -> tuple[int, int]:
        """Percent of both cards, what is expected among them."""
        rows = self.state.fleet.rows_of(BOTH)
        first, second = self.state.fleet.used_core[rows, 0].tolist()
        return first, second


def test_the_next_pod_is_ranked_beside_the_one_before_it_though_that_is_not_bound_yet() -> None:
    scene = Scene()
    scene.ranked(calls.pod("a", WHOLE), ["n0"])
    scene.ranked(calls.pod("b", WHOLE))
    assert scene.named(calls.pod("b", WHOLE)) == ["n1"]
    assert [scene.bind("b", "n1"), scene.bind("a", "n0")] == ["", ""]
    assert scene.used() == (100, 100)


def test_so_it_is_where_one_node_has_room_of_which_no_ranking_is_asked() -> None:
    scene = Scene()
    assert scene.named(calls.pod("a", WHOLE), ["n0"]) == ["n0"]
    assert scene.named(calls.pod("b", WHOLE)) == ["n1"]
    assert [scene.bind("b", "n1"), scene.bind("a", "n0")] == ["", ""]
    assert scene.used() == (100, 100)


def test_nobody_is_refused_for_it_nor_remembered_as_refused() -> None:
    scene = Scene()
    for uid, node in (("a", "n0"), ("b", "n1")):
        scene.ranked(calls.pod(uid, WHOLE), [node])
    assert scene.named(calls.pod("c", WHOLE)) == BOTH
    assert scene.used() == (0, 0)


def test_who_is_bound_first_has_the_room() -> None:
    scene = Scene()
    scene.ranked(calls.pod("a", WHOLE), ["n0"])
    scene.verbs.filter(calls.arguments(calls.pod("b", WHOLE), ["n0"]))
    scene.ranked(calls.pod("a", WHOLE), ["n0"])
    assert scene.bind("b", "n0") == ""
    assert scene.bind("a", "n0").startswith("node n0: no GPU card with enough")
    assert scene.used() == (100, 0)


def test_bound_to_another_node_it_holds_nothing_of_the_one_that_was_expected() -> None:
    scene = Scene()
    scene.ranked(calls.pod("a", WHOLE), ["n0"])
    assert scene.bind("a", "n1") == ""
    assert scene.used() == (0, 100)


def test_who_asks_for_something_else_by_now_is_placed_anew() -> None:
    scene = Scene()
    scene.ranked(calls.pod("a"), ["n0"])
    scene.verbs.filter(calls.arguments(calls.pod("b"), BOTH))
    less = calls.pod("a", objects.container("main", core=30, ratio=30))
    scene.verbs._remember(scene.verbs._reader.arguments(calls.arguments(less, BOTH))[0])
    assert scene.bind("a", "n0") == ""
    assert scene.used() == (30, 0)


def test_a_pod_that_is_bound_is_expected_nowhere() -> None:
    scene = Scene()
    scene.ranked(calls.pod("a"), ["n0"])
    assert scene.bind("a", "n0") == ""
    scene.verbs.prioritize(calls.arguments(calls.pod("a"), ["n1"]))
    assert scene.used() == (50, 0)


def test_nobody_makes_way_for_what_is_expected() -> None:
    scene = Scene()
    scene.ranked(calls.pod("a", WHOLE), ["n0"])
    asked = calls.preemption(calls.pod("high", WHOLE), {"n0": []})
    assert list(calls.loads(scene.verbs.preempt(asked))["NodeNameToMetaVictims"]) == ["n0"]


def _by_hand(state: State) -> None:
    state.see_pod(translate.pod(calls.pod("hand", node="n0")))


ENDS: dict[str, Callable[[Scene], object]] = {
    "it is asked for again": lambda scene: scene.named(calls.pod("a", WHOLE)),
    "another is bound there by hand": lambda scene: _by_hand(scene.state),
    "its node changes": lambda scene: scene.state.see_node(
        translate.node(objects.node("n0", cordoned_cards="GPU-n0-0"))
    ),
    "its node is gone": lambda scene: scene.state.lose_node("n0"),
    "its node's cards are gone": lambda scene: scene.state.lose_device("n0"),
    "its node's agent is gone": lambda scene: scene.state.lose_lease("n0"),
    "some seconds pass": lambda scene: [scene.state.tick(0.0) for _ in range(TICKS)],
}


@pytest.mark.parametrize("why", ENDS)
def test_it_ends_when(why: str) -> None:
    scene = Scene()
    scene.ranked(calls.pod("a", WHOLE), ["n0"])
    assert scene.used() == (100, 0)
    scene.state.tick(0.0)
    assert scene.state.fleet.used_core[scene.state.fleet.row_of("n0"), 0] == 100
    ENDS[why](scene)
    assert not scene.state.tentative.end_all()
    # What was counted is given back, once.
    assert scene.state.fleet.used_core.max() == 0 == scene.state.fleet.used_core.min()


@pytest.mark.parametrize("gone", ["its node is gone", "its node's agent is gone"])
def test_nothing_is_bound_where_nothing_may_be_by_now(gone: str) -> None:
    scene = Scene()
    scene.ranked(calls.pod("a", WHOLE), ["n0"])
    ENDS[gone](scene)
    assert scene.bind("a", "n0").startswith("node n0: ")
