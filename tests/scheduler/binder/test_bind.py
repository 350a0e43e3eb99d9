"""The requests that `bind` sends: their content and deadlines, and the right to send them."""

from __future__ import annotations

import asyncio

import pytest

from gpuslice.contract import names as words
from tests.scheduler import calls, objects
from tests.scheduler.binder.scene import Scene, scene_of
from tests.scheduler.pod_server import Fate, Misfortune

STANDBY = "another replica holds the Lease: pod-7"


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
    assert (scene.sent, scene.held("n0"), scene.held("n1")) == (1, 50, 0)


async def test_nothing_is_sent_for_a_bind_whose_time_is_over(scene: Scene) -> None:
    """The second bind waits for the pod's first bind. Meanwhile kube-scheduler's call times out."""
    first = await scene.begun(Fate.HANG)
    second = asyncio.create_task(scene.bind(node="n1"))
    await asyncio.sleep(0)
    scene.now_s = 1e6
    assert "in time" in await first
    assert await second
    assert (scene.sent, scene.server.seen_gets, scene.held("n0")) == (1, 0, 50)


async def test_a_shutdown_waits_for_outcomes_up_to_its_time_limit(scene: Scene) -> None:
    scene.server.slow_s = 0.5
    binding = await scene.begun()
    await scene.binder.finish(0.01)
    assert not binding.done()
    await scene.binder.finish(60.0)
    await asyncio.sleep(0)
    assert binding.done()
    assert await binding == ""


async def test_few_bindings_are_sent_at_once(
    patient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.binder.MAX_POSTS", 2)
    state, uids = calls.state(nodes=2, gpus=4), [f"u-{number}" for number in range(6)]
    async with scene_of(*map(calls.pod, uids), state=state) as scene:
        scene.server.slow_s = 0.2
        for uid in uids:
            scene.ask(calls.pod(uid))
        assert await asyncio.gather(*map(scene.bind, uids)) == [""] * 6
        assert scene.server.most_under_way == 2
        assert sorted(each["metadata"]["uid"] for each in scene.server.bindings) == uids


async def test_a_bind_that_waits_too_long_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.binder.MAX_POSTS", 1)
    async with scene_of(calls.pod("u-1"), calls.pod("u-2")) as scene:
        first = await scene.begun(Fate.HANG)
        scene.ask(calls.pod("u-2"))
        assert "took too long" in await scene.bind("u-2", "n1")
        assert await first
        assert scene.sent == 1


async def test_gpus_are_chosen_and_held_before_anything_is_awaited() -> None:
    """Pods that are bound concurrently get different capacity."""
    uids = [f"u-{number}" for number in range(4)]
    async with scene_of(*map(calls.pod, uids)) as scene:
        for uid in uids:
            scene.ask(calls.pod(uid))
        refused = "node n0: no GPU with enough free memory and core at once"
        assert await asyncio.gather(*map(scene.bind, uids)) == ["", "", refused, refused]
        assert scene.held() == 100


async def test_a_pod_without_a_share_is_bound_plainly(patient: None) -> None:
    plain = calls.pod("u-1", objects.container("main"))
    async with scene_of(plain) as scene:
        scene.ask(plain)
        scene.server.posts = [Fate.RESET]
        assert await scene.bind(node="unknown") == ""
        for binding in scene.server.bindings:
            assert binding["metadata"] == {"namespace": "default", "name": "pod-u-1", "uid": "u-1"}
        assert (scene.sent, scene.server.seen_gets) == (2, 1)


@pytest.mark.parametrize("fate", [Fate.HANG, Fate.RESET, 500, 503, 404])
async def test_a_pod_that_cannot_be_read_is_not_bound(fate: Misfortune, scene: Scene) -> None:
    scene.server.gets = [fate, fate] if fate is Fate.RESET else [fate]  # aiohttp retries resets
    assert await scene.bind() != ""
    assert (scene.sent, scene.held()) == (0, 0)
    assert await scene.bind() == ""


async def test_a_request_that_is_refused_is_not_bound() -> None:
    bad = calls.pod("u-1", objects.container("main", gpu=150))
    async with scene_of(bad) as scene:
        scene.ask(bad)
        invalid = "container main: koordinator.sh/gpu: invalid value 150"
        assert (await scene.bind()).startswith(invalid)
        assert scene.sent == 0


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(("open_for", "fate", "held"), [(0, 200, 0), (1, 429, 0), (1, 500, 50)])
async def test_each_post_needs_the_lease(
    open_for: int, fate: Misfortune, held: int, scene: Scene
) -> None:
    scene.guard.open_for = open_for
    unconfirmed = f"binding to n0 not confirmed: {STANDBY}; kube-scheduler retries"
    assert await scene.attempt(fate) == (unconfirmed if held else STANDBY)
    assert (scene.sent, scene.held()) == (open_for, held)
