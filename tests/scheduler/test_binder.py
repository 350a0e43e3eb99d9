"""`bind` against an HTTP server with every outcome that an API server may have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from contract import names as words
from kube.access import Access
from kube.client import Kube
from scheduler.binder import Binder
from scheduler.decisions.state import State
from scheduler.decisions.verbs import Verbs
from scheduler.kubernetes import translate
from scheduler.kubernetes.arguments import BindingArguments
from tests.scheduler import calls, objects
from tests.scheduler.gates import HandGate
from tests.scheduler.pod_server import Fate, Misfortune, PodServer

WHOLE = objects.container("main", gpu=100)


class Scene:
    """A state of two nodes with one GPU each, a server, and a binder."""

    def __init__(self, server: PodServer, kube: Kube, state: State, gate: HandGate) -> None:
        self.server = server
        self.state = state
        self.gate = gate
        self.now_s = 0.0
        self.verbs = Verbs(state)
        self.binder = Binder(state, kube, gate, self.verbs, lambda: self.now_s)

    def ask(self, raw: dict[str, Any]) -> None:
        """kube-scheduler sends filter for the pod, as it knows it."""
        self.verbs.filter(calls.arguments(raw, calls.names(2)))

    async def bind(self, uid: str = "u-1", node: str = "n0") -> str:
        return await self.binder.bind(BindingArguments("default", f"pod-{uid}", uid, node))

    def watch(self, uid: str = "u-1") -> None:
        """The watch delivers the pod as it is now."""
        self.state.observe_pod(translate.pod(self.server.pods[f"pod-{uid}"]))

    def held(self, node: str = "n0") -> int:
        """Percent held of the node's GPU."""
        row = self.state.fleet.row_of(node)
        return int(self.state.fleet.used_core[row, 0])


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short timeouts, so that everything is tried once and hanging calls end soon."""
    monkeypatch.setattr("scheduler.binder.WORK_S", 0.0)
    monkeypatch.setattr("scheduler.binder.POST_S", 1.0)
    monkeypatch.setattr("scheduler.binder.GET_S", 1.0)


@pytest.fixture
def patient(_soon: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries for a minute."""
    monkeypatch.setattr("scheduler.binder.WORK_S", 60.0)


@asynccontextmanager
async def scene_of(*pods: dict[str, Any], state: State | None = None) -> AsyncIterator[Scene]:
    server = PodServer(*(pods or (calls.pod(),)))
    async with server.serving() as access, Kube(access) as kube:
        yield Scene(server, kube, state or calls.state(nodes=2, gpus=1), HandGate())


@pytest.fixture
def scene() -> AbstractAsyncContextManager[Scene]:
    return scene_of()


async def test_one_write_carries_the_pod_the_node_the_gpus_and_the_writer(scene: Scene) -> None:
    scene.ask(calls.pod())
    assert await scene.bind() == ""
    (binding,) = scene.server.bindings
    metadata = binding["metadata"]
    annotations = metadata["annotations"]
    assert (metadata["uid"], metadata["resourceVersion"]) == ("u-1", "1")
    assert binding["target"]["name"] == "n0"
    assert annotations[words.ANNOTATION_WRITER] == "pod-1 3"
    assert "GPU-n0-0" in annotations[words.ANNOTATION_GRANTS]
    assert scene.server.queries == [{"timeout": "1.000s", "fieldValidation": "Ignore"}]
    assert (scene.server.seen_gets, scene.gate.most_under_way) == (0, 1)
    assert (scene.held(), scene.state.is_bound("u-1")) == (50, False)
    scene.watch()
    assert (scene.held(), scene.state.is_bound("u-1")) == (50, True)


async def test_nothing_is_sent_for_a_bind_whose_time_is_over(scene: Scene) -> None:
    """kube-scheduler's call has timed out: it waited here behind another bind of its pod."""
    scene.server.posts = [Fate.HANG]
    scene.ask(calls.pod())
    first = asyncio.create_task(scene.bind(node="n0"))
    await scene.server.sent.wait()
    second = asyncio.create_task(scene.bind(node="n1"))
    await asyncio.sleep(0)
    scene.now_s = 1e6
    assert "in time" in await first
    assert await second
    assert len(scene.server.bindings) == 1
    assert (scene.server.seen_gets, scene.held("n0")) == (0, 50)


async def test_few_bindings_are_sent_at_once_and_the_others_wait(
    patient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.binder.MAX_POSTS", 2)
    state = calls.state(nodes=2, gpus=4)
    async with scene_of(*(calls.pod(f"u-{number}") for number in range(6)), state=state) as scene:
        for number in range(6):
            scene.ask(calls.pod(f"u-{number}"))
        said = await asyncio.gather(*(scene.bind(f"u-{number}") for number in range(6)))
        assert said == [""] * 6
        assert scene.gate.most_under_way == 2
        sent = [binding["metadata"]["uid"] for binding in scene.server.bindings]
        assert sorted(sent) == [f"u-{number}" for number in range(6)]


async def test_a_bind_that_waits_too_long_for_others_sends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scheduler.binder.MAX_POSTS", 1)
    async with scene_of(calls.pod("u-1"), calls.pod("u-2")) as scene:
        scene.server.posts = [Fate.HANG]
        scene.ask(calls.pod("u-1"))
        scene.ask(calls.pod("u-2"))
        first = asyncio.create_task(scene.bind("u-1"))
        await scene.server.sent.wait()
        assert "took too long" in await scene.bind("u-2", "n1")
        assert await first
        assert len(scene.server.bindings) == 1


async def test_gpus_are_chosen_and_held_before_anything_is_awaited() -> None:
    """Pods that are bound concurrently get different capacity."""
    async with scene_of(*(calls.pod(f"u-{number}") for number in range(4))) as scene:
        for number in range(4):
            scene.ask(calls.pod(f"u-{number}"))
        one, two, *others = await asyncio.gather(*(scene.bind(f"u-{n}") for n in range(4)))
        assert (one, two) == ("", "")
        assert others == ["node n0: no GPU with enough free memory and core at once"] * 2
        assert scene.held() == 100


async def test_a_binding_requires_the_version_after_a_write_of_ours() -> None:
    """Else it would be refused, and the pod read again."""
    async with scene_of(calls.pod("u-1")) as scene:
        scene.ask(calls.pod("u-1"))
        scene.server.touch("pod-u-1")

        async def settled(uid: str) -> None:
            scene.ask(scene.server.pods["pod-u-1"])

        scene.binder._settled = settled
        assert await scene.bind() == ""
        assert len(scene.server.bindings) == 1
        assert scene.server.seen_gets == 0


async def test_a_pod_without_a_share_is_bound_plainly() -> None:
    plain = calls.pod("u-1", objects.container("main"))
    async with scene_of(plain) as scene:
        scene.ask(plain)
        assert await scene.bind(node="unknown") == ""
        (binding,) = scene.server.bindings
        assert binding["metadata"] == {"namespace": "default", "name": "pod-u-1", "uid": "u-1"}
        assert scene.server.seen_gets == 0


@pytest.mark.parametrize("fate", [Fate.HANG, Fate.RESET, 500, 503, 404])
async def test_a_pod_that_cannot_be_read_is_not_bound(fate: Misfortune, scene: Scene) -> None:
    scene.server.gets = [fate, fate] if fate is Fate.RESET else [fate]  # aiohttp retries once
    assert await scene.bind() != ""
    assert (scene.server.bindings, scene.held()) == ([], 0)
    assert await scene.bind() == ""


async def test_a_request_that_is_refused_is_not_bound() -> None:
    bad = calls.pod("u-1", objects.container("main", gpu=150))
    async with scene_of(bad) as scene:
        scene.ask(bad)
        assert (await scene.bind()).startswith(
            "container main: koordinator.sh/gpu: invalid value 150"
        )
        assert scene.server.bindings == []


# --- Gate


async def test_a_pod_that_may_not_write_sends_nothing_and_holds_nothing(scene: Scene) -> None:
    scene.gate.is_open = False
    scene.ask(calls.pod())
    assert await scene.bind() == "another replica holds the Lease: pod-7"
    assert (scene.server.bindings, scene.held()) == ([], 0)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(("fate", "held"), [(429, 0), (500, 50)])
async def test_the_gate_is_checked_before_each_post(
    fate: Misfortune, held: int, scene: Scene
) -> None:
    scene.gate.open_for = 1
    scene.server.posts = [fate]
    scene.ask(calls.pod())
    said = await scene.bind()
    why = "another replica holds the Lease: pod-7"
    assert said == (f"binding to n0 not confirmed: {why}; kube-scheduler retries" if held else why)
    assert (len(scene.server.bindings), scene.held()) == (1, held)


# --- refusals


@pytest.mark.parametrize("code", [400, 403, 404, 422])
async def test_a_refusal_gives_the_gpus_back(code: int, scene: Scene) -> None:
    scene.server.posts = [code]
    scene.ask(calls.pod())
    assert await scene.bind() == f"Code{code}: it is so"
    assert (scene.server.seen_gets, scene.held(), scene.binder.under_way) == (0, 0, 0)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("code", [401, 429])
async def test_a_binding_that_the_server_did_not_process_is_repeated(
    code: int, scene: Scene
) -> None:
    scene.server.posts = [code, code]
    scene.ask(calls.pod())
    assert await scene.bind() == ""
    assert (scene.server.seen_gets, len(scene.server.bindings), scene.held()) == (0, 3, 50)


async def test_a_bind_without_an_api_server_holds_nothing() -> None:
    state = calls.state(nodes=2, gpus=1)
    async with Kube(Access("http://127.0.0.1:1")) as kube:
        scene = Scene(PodServer(), kube, state, HandGate())
        scene.ask(calls.pod())
        assert (await scene.bind()).startswith("Unreachable")
        assert scene.held() == 0


@pytest.mark.parametrize(("node", "said"), [("n0", ""), ("n1", "the pod is bound to n1")])
async def test_a_pod_that_another_scheduler_bound_first(node: str, said: str, scene: Scene) -> None:
    """If the pod is bound to the same node, the reservation stays until the watch reports what it
    holds."""
    scene.ask(calls.pod())
    scene.server.pods["pod-u-1"]["spec"]["nodeName"] = node
    assert await scene.bind() == said
    assert scene.held() == (50 if node == "n0" else 0)
    scene.watch()
    assert (scene.held("n0"), scene.held("n1")) == (0, 0)


@pytest.mark.usefixtures("patient")
async def test_a_pod_whose_request_changed_since_filter_is_tried_anew(scene: Scene) -> None:
    scene.ask(calls.pod())
    scene.server.pods["pod-u-1"]["metadata"]["annotations"] = {words.ANNOTATION_POLICY: "spread"}
    scene.server.touch("pod-u-1")
    assert await scene.bind() == "the pod was changed meanwhile"
    assert scene.held() == 0


# --- unknown outcomes


@pytest.mark.parametrize("fate", [Fate.HANG_DONE, Fate.RESET_DONE, Fate.STORE_TIMES_OUT_DONE])
async def test_a_binding_done_without_an_answer_is_detected(fate: Fate) -> None:
    async with scene_of() as scene:
        scene.server.posts = [fate]
        scene.ask(calls.pod())
        assert await scene.bind() == ""
        assert (len(scene.server.bindings), scene.server.seen_gets) == (1, 1)
        scene.watch()
        assert scene.held() == 50


UNDONE: list[Misfortune] = [Fate.HANG, Fate.RESET, Fate.STORE_TIMES_OUT, 408, 500, 503, 504]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("fate", UNDONE)
async def test_a_binding_not_done_and_without_an_answer_is_sent_again(
    fate: Misfortune, scene: Scene
) -> None:
    scene.server.posts = [fate]
    scene.ask(calls.pod())
    assert await scene.bind() == ""
    first, second = scene.server.bindings
    assert (first, scene.held()) == (second, 50)


@pytest.mark.parametrize("fate", UNDONE)
async def test_a_binding_without_an_answer_keeps_its_reservation(
    fate: Misfortune, scene: Scene
) -> None:
    scene.server.posts = [fate]
    scene.ask(calls.pod())
    assert (await scene.bind()).startswith("binding to n0 not confirmed: ")
    assert scene.held() == 50


async def test_once_the_pod_has_changed_what_was_sent_before_cannot_be_done(scene: Scene) -> None:
    """kube-scheduler writes the failed bind into the pod's status, which releases the
    reservation."""
    scene.server.posts = [Fate.LATE]
    scene.ask(calls.pod())
    assert "not confirmed" in await scene.bind()
    scene.server.touch("pod-u-1")
    scene.now_s = 1e6
    await scene.binder.check_overdue()
    assert (scene.held(), scene.binder.under_way) == (0, 0)
    (said,) = scene.server.land()
    assert "Precondition failed" in said


@pytest.mark.parametrize("changed", [False, True])
async def test_before_a_bind_to_another_node_the_pod_is_read(changed: bool, scene: Scene) -> None:
    scene.server.posts = [Fate.LATE]
    scene.ask(calls.pod())
    assert "not confirmed" in await scene.bind(node="n0")
    if changed:
        scene.server.touch("pod-u-1")
    said = await scene.bind(node="n1")
    assert len(scene.server.bindings) == (2 if changed else 1)
    unchanged = (
        "binding to n0 not confirmed: the API server returned the pod unchanged;"
        " kube-scheduler retries"
    )
    assert said == ("" if changed else unchanged)
    assert (scene.held("n0"), scene.held("n1")) == ((0, 50) if changed else (50, 0))
    scene.server.land()
    scene.watch()
    assert (scene.held("n0"), scene.held("n1")) == ((0, 50) if changed else (50, 0))


# --- watch events during a bind


@pytest.mark.usefixtures("patient")
async def test_the_watch_may_be_faster_than_the_answer() -> None:
    async with scene_of() as scene:
        scene.server.posts, scene.server.gets = [Fate.RESET], []
        scene.ask(calls.pod())
        binding = asyncio.create_task(scene.bind())
        await scene.server.asked.wait()
        scene.server.pods["pod-u-1"]["spec"]["nodeName"] = "n0"
        scene.watch()
        assert await binding == ""
    async with scene_of() as scene:
        scene.server.posts = [429]
        scene.ask(calls.pod())
        binding = asyncio.create_task(scene.bind())
        await scene.server.sent.wait()
        scene.state.remove_pod("u-1")
        assert await binding == "the pod is gone"
        assert (len(scene.server.bindings), scene.held()) == (1, 0)


async def test_a_caller_that_disconnects_does_not_end_the_binding(scene: Scene) -> None:
    scene.server.posts = [Fate.HANG]
    scene.ask(calls.pod())
    caller = asyncio.create_task(scene.bind())
    await scene.server.sent.wait()
    caller.cancel()
    await asyncio.wait([caller])
    assert scene.binder.under_way == 1
    assert "not confirmed" in await scene.bind()
    assert scene.server.seen_gets == 1


@pytest.mark.usefixtures("patient")
async def test_the_pod_is_read_again_where_the_first_answer_does_not_come(scene: Scene) -> None:
    scene.server.posts, scene.server.gets = [Fate.RESET_DONE], [500, 503]
    scene.ask(calls.pod())
    assert await scene.bind() == ""
    assert (len(scene.server.bindings), scene.server.seen_gets) == (1, 3)


# --- `check_overdue`


async def test_what_was_bound_and_deleted_unseen_is_given_back(scene: Scene) -> None:
    scene.ask(calls.pod())
    assert await scene.bind() == ""
    scene.server.pods.clear()
    await scene.binder.check_overdue()
    assert (scene.held(), scene.server.seen_gets) == (50, 0)
    scene.now_s = 1e6
    await scene.binder.check_overdue()
    assert (scene.held(), scene.server.seen_gets) == (0, 1)


async def test_what_is_bound_is_held_until_the_watch_sees_it(scene: Scene) -> None:
    scene.ask(calls.pod())
    assert await scene.bind() == ""
    scene.now_s = 1e6
    await scene.binder.check_overdue()
    await scene.binder.check_overdue()
    assert (scene.held(), scene.server.seen_gets) == (50, 1)
    scene.watch()
    scene.now_s = 2e6
    await scene.binder.check_overdue()
    assert (scene.held(), scene.server.seen_gets) == (50, 1)


async def test_without_answers_one_pod_is_read_and_all_reservations_stay() -> None:
    pods = [calls.pod(f"u-{number}") for number in range(2)]
    async with scene_of(*pods) as scene:
        for raw in pods:
            scene.ask(raw)
            assert await scene.bind(raw["metadata"]["uid"]) == ""
        scene.now_s = 1e6
        scene.server.gets = [500]
        await scene.binder.check_overdue()
        assert (scene.held(), scene.server.seen_gets) == (100, 1)
        await scene.binder.check_overdue()
        assert (scene.held(), scene.server.seen_gets) == (100, 3)
