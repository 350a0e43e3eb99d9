"""Requests of `bind`: pods, content, time, and only as long as the process may write."""

from __future__ import annotations

import asyncio

import pytest

from gpuslice.contract import names as words
from tests.scheduler import calls, objects
from tests.scheduler.binder.scene import Scene, scene_of
from tests.scheduler.pod_server import Fate, Misfortune

WHOLE = objects.container("main", gpu=100)


async def test_one_write_carries_the_pod_the_node_the_gpus_and_the_writer(scene: Scene) -> None:
    assert await scene.attempt() == ""
    (binding,) = scene.server.bindings
    metadata = binding["metadata"]
    annotations = metadata["annotations"]
    assert (metadata["uid"], metadata["resourceVersion"]) == ("u-1", "1")
    assert binding["target"]["name"] == "n0"
    assert annotations[words.ANNOTATION_WRITER] == "pod-1_3"
    assert "GPU-n0-0" in annotations[words.ANNOTATION_GRANTS]
    assert scene.server.queries == [{"timeout": "1.000s", "fieldValidation": "Ignore"}]
    assert (scene.server.seen_gets, scene.guard.checked) == (0, 1)
    assert (scene.held(), scene.state.is_bound("u-1")) == (50, False)
    scene.watch()
    assert (scene.held(), scene.state.is_bound("u-1")) == (50, True)


async def test_repeated_bind_calls_bind_once(scene: Scene) -> None:
    assert await scene.attempt() == ""
    scene.watch()
    assert await scene.bind() == ""
    assert await scene.bind(node="n1") == "the pod is bound to n0"
    assert len(scene.server.bindings) == 1
    assert (scene.held("n0"), scene.held("n1")) == (50, 0)


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


async def test_a_shutdown_waits_for_outcomes_up_to_its_time_limit(scene: Scene) -> None:
    scene.server.slow_s = 0.5
    scene.ask(calls.pod())
    binding = asyncio.create_task(scene.bind())
    await scene.server.sent.wait()
    await scene.binder.finish(0.01)
    assert not binding.done()
    await scene.binder.finish(60.0)
    await asyncio.sleep(0)
    assert binding.done()
    assert await binding == ""


async def test_few_bindings_are_sent_at_once_and_the_others_wait(
    patient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.binder.MAX_POSTS", 2)
    state = calls.state(nodes=2, gpus=4)
    async with scene_of(*(calls.pod(f"u-{number}") for number in range(6)), state=state) as scene:
        scene.server.slow_s = 0.2
        for number in range(6):
            scene.ask(calls.pod(f"u-{number}"))
        said = await asyncio.gather(*(scene.bind(f"u-{number}") for number in range(6)))
        assert said == [""] * 6
        assert scene.server.most_under_way == 2
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


async def test_a_pod_that_may_not_write_sends_nothing_and_holds_nothing(scene: Scene) -> None:
    scene.guard.is_open = False
    assert await scene.attempt() == "another replica holds the Lease: pod-7"
    assert (scene.server.bindings, scene.held()) == ([], 0)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(("fate", "held"), [(429, 0), (500, 50)])
async def test_the_gate_is_checked_before_each_post(
    fate: Misfortune, held: int, scene: Scene
) -> None:
    scene.guard.open_for = 1
    said = await scene.attempt(fate)
    why = "another replica holds the Lease: pod-7"
    assert said == (f"binding to n0 not confirmed: {why}; kube-scheduler retries" if held else why)
    assert (len(scene.server.bindings), scene.held()) == (1, held)
