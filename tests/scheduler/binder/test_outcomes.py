"""Reactions of `bind` to refusals, lost answers and the watch's events."""

from __future__ import annotations

import asyncio

import pytest

from gpuslice.contract import names as words
from gpuslice.kube.access import Access
from gpuslice.kube.client import Kube
from tests.scheduler import calls
from tests.scheduler.binder.scene import Scene, scene_of
from tests.scheduler.pod_server import Fate, Misfortune, PodServer


@pytest.mark.parametrize("code", [400, 403, 404, 422])
async def test_a_refusal_gives_the_gpus_back(code: int, scene: Scene) -> None:
    assert await scene.attempt(code) == f"Code{code}: it is so"
    assert (scene.server.seen_gets, scene.held(), len(scene.binder._jobs)) == (0, 0, 0)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("code", [401, 429])
async def test_a_binding_that_was_not_processed_is_repeated(code: int, scene: Scene) -> None:
    assert await scene.attempt(code, code) == ""
    assert (scene.server.seen_gets, scene.sent, scene.held()) == (0, 3, 50)


async def test_a_bind_without_an_api_server_holds_nothing() -> None:
    async with Kube(Access("http://127.0.0.1:1")) as kube:
        scene = Scene(PodServer(), kube)
        assert (await scene.attempt()).startswith("Unreachable")
        assert scene.held() == 0


@pytest.mark.parametrize(("node", "said"), [("n0", ""), ("n1", "the pod is bound to n1")])
async def test_a_pod_that_another_scheduler_bound_first(node: str, said: str, scene: Scene) -> None:
    """If the other scheduler chose the reserved node, the reservation stays until the watch reports
    what the pod holds."""
    scene.ask()
    scene.server.pods["pod-u-1"]["spec"]["nodeName"] = node
    assert await scene.bind() == said
    assert scene.held() == (50 if node == "n0" else 0)
    scene.watch()
    assert (scene.held("n0"), scene.held("n1")) == (0, 0)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(("key", "held"), [(words.ANNOTATION_POLICY, 0), ("other", 50)])
async def test_a_changed_pod_is_tried_again(key: str, held: int, scene: Scene) -> None:
    scene.ask()
    scene.server.pods["pod-u-1"]["metadata"]["annotations"] = {key: "spread"}
    scene.server.touch("pod-u-1")
    scene.guard.open_for = 2
    assert await scene.bind() == ("" if held else "the pod was changed meanwhile")
    versions = [each["metadata"]["resourceVersion"] for each in scene.server.bindings]
    assert (versions, scene.held()) == (["1", "101"] if held else ["1"], held)


async def test_a_pod_that_is_being_deleted_is_not_bound(scene: Scene) -> None:
    scene.server.pods["pod-u-1"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert await scene.attempt(Fate.RESET) == "the pod is being deleted"
    assert scene.held() == 0


@pytest.mark.parametrize("fate", [Fate.RESET_DONE, Fate.STORE_TIMES_OUT_DONE])
async def test_a_binding_done_without_an_answer_is_detected(fate: Fate, scene: Scene) -> None:
    assert await scene.attempt(fate) == ""
    assert (scene.sent, scene.server.seen_gets) == (1, 1)
    scene.watch()
    assert scene.held() == 50


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("fate", [Fate.HANG, Fate.RESET, Fate.STORE_TIMES_OUT, 408, 500, 503, 504])
async def test_a_binding_without_an_answer_is_sent_again(fate: Misfortune, scene: Scene) -> None:
    assert await scene.attempt(fate) == ""
    first, second = scene.server.bindings
    assert (first, scene.held()) == (second, 50)


@pytest.mark.parametrize("changed", [False, True])
async def test_before_a_bind_to_another_node_the_pod_is_read(changed: bool, scene: Scene) -> None:
    unchanged = (
        "binding to n0 not confirmed: the API server returned the pod unchanged;"
        " kube-scheduler retries"
    )
    assert "not confirmed" in await scene.attempt(Fate.LATE)
    if changed:
        scene.server.touch("pod-u-1")
    assert await scene.bind(node="n1") == ("" if changed else unchanged)
    assert scene.sent == (2 if changed else 1)
    held = (0, 50) if changed else (50, 0)
    assert (scene.held("n0"), scene.held("n1")) == held
    scene.server.land()
    scene.watch()
    assert (scene.held("n0"), scene.held("n1")) == held


@pytest.mark.usefixtures("patient")
async def test_the_watch_may_be_faster_than_the_answer(scene: Scene) -> None:
    binding = await scene.begun(Fate.RESET)
    await scene.server.asked.wait()
    scene.server.pods["pod-u-1"]["spec"]["nodeName"] = "n0"
    scene.watch()
    assert await binding == ""


@pytest.mark.usefixtures("patient")
async def test_a_pod_that_is_gone_before_its_binding_is_repeated(scene: Scene) -> None:
    binding = await scene.begun(429)
    scene.state.remove_pod("u-1")
    assert await binding == "the pod is gone"
    assert (scene.sent, scene.held()) == (1, 0)


async def test_a_caller_that_disconnects_does_not_end_the_binding(scene: Scene) -> None:
    caller = await scene.begun(Fate.HANG)
    caller.cancel()
    await asyncio.wait([caller])
    assert len(scene.binder._jobs) == 1
    assert "not confirmed" in await scene.bind()
    assert (scene.sent, scene.server.seen_gets) == (1, 1)


@pytest.mark.usefixtures("patient")
async def test_the_pod_is_read_again_where_the_first_answer_does_not_come(scene: Scene) -> None:
    scene.server.gets = [500, 503]
    assert await scene.attempt(Fate.RESET_DONE) == ""
    assert (scene.sent, scene.server.seen_gets) == (1, 3)


async def test_what_is_bound_is_held_until_the_watch_sees_it(scene: Scene) -> None:
    assert await scene.attempt() == ""
    for _ in range(2):
        await scene.check_overdue()
        assert (scene.held(), scene.server.seen_gets) == (50, 1)
    scene.watch()
    await scene.check_overdue(2e6)
    assert (scene.held(), scene.server.seen_gets) == (50, 1)


@pytest.mark.parametrize("late", [False, True])
async def test_a_bind_during_a_check_is_made_after_it(late: bool, scene: Scene) -> None:
    assert "not confirmed" in await scene.attempt(Fate.RESET)
    scene.server.asked.clear()
    check = asyncio.create_task(scene.check_overdue())
    await scene.server.asked.wait()
    binding = asyncio.create_task(scene.bind())
    await asyncio.sleep(0)
    scene.now_s += late
    assert ("took too long" in await binding, scene.sent, check.done()) == (late, 2 - late, True)


async def test_without_answers_one_pod_is_read_and_all_reservations_stay() -> None:
    uids = ["u-0", "u-1"]
    async with scene_of(*map(calls.pod, uids)) as scene:
        for uid in uids:
            scene.ask(calls.pod(uid))
            assert await scene.bind(uid) == ""
        scene.server.gets = [500]
        await scene.check_overdue()
        assert (scene.held(), scene.server.seen_gets) == (100, 1)
        await scene.check_overdue()
        assert (scene.held(), scene.server.seen_gets) == (100, 3)
