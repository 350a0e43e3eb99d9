"""The cache over a real API server's objects, with failures of either."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from fractions import Fraction
from typing import Any

import pytest

from gpuslice.contract import names
from lab.cluster import etcd as etcd_lab
from lab.cluster import manifests
from lab.cluster.controlplane import ControlPlane
from scheduler.cache import NODES
from scheduler.core.place import Placement, place
from scheduler.core.reasons import Reason
from scheduler.core.request import ContainerRequest, Request
from scheduler.kubernetes import binding
from tests.cluster.cache_scene import Play, World, by_koordinator, world_of
from tests.scheduler.objects import gpu

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def with_rights(control_plane: ControlPlane) -> ControlPlane:
    rights = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    control_plane.apply_json(*manifests.objects(*rights))
    return control_plane


@pytest.fixture
def play(with_rights: ControlPlane, namespace: str) -> Play:
    """Runs a scene in its own world."""

    def run(scene: Callable[[World], Awaitable[None]]) -> None:
        async def whole() -> None:
            async with world_of(with_rights, namespace) as world:
                await scene(world)

        asyncio.run(whole())

    return run


def test_the_cache_follows_a_pod_from_creation_to_deletion(play: Play) -> None:
    async def scene(world: World) -> None:
        uid = await world.make_pod("ours", bound=False)
        half = Request([ContainerRequest("main", core_percent=50, memory_ratio=Fraction(1, 2))])
        placement = place(world.state.fleet, half, world.state.fleet.row_of(world.node))
        assert isinstance(placement, Placement)
        world.state.assume(
            uid, placement, deadline_s=0.0, annotations=binding.annotations_of(placement)
        )
        await world.bind("ours", uid, placement)
        await world.until(lambda: world.state.is_bound(uid), "that it is bound")
        assert world.used() == {"GPU-a": 12, "GPU-b": 0}
        await world.delete_pod("ours")
        await world.until_used(a=0, b=0)

    play(scene)


def test_a_terminating_pod_holds_its_gpu_until_it_is_deleted(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.make_pod("slow", annotations=by_koordinator())
        await world.until_used(a=12, b=0)
        await world.delete_pod("slow", grace_s=600)
        # A later event of the watch has arrived, so the deletion has too.
        await world.make_pod("after", annotations=by_koordinator("GPU-b", 1))
        await world.until_used(a=12, b=12)
        await world.delete_pod("slow")
        await world.until_used(a=0, b=12)

    play(scene)


def test_minors_that_are_renumbered_leave_each_grant_on_its_gpu(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.make_pod("stays", annotations=by_koordinator())
        await world.until_used(a=12, b=0)
        await world.change_device(gpu("GPU-b", 0), gpu("GPU-a", 1))
        fleet = world.state.fleet
        await world.until(
            lambda: fleet.gpus[fleet.row_of(world.node)][0].uuid == "GPU-b",
            "the new order",
        )
        assert world.used() == {"GPU-a": 12, "GPU-b": 0}

    play(scene)


def test_the_api_server_is_killed_and_comes_back(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.make_pod("before", annotations=by_koordinator())
        await world.until_used(a=12, b=0)
        await asyncio.to_thread(world.plane.restart_apiserver)
        await world.make_pod("after", annotations=by_koordinator("GPU-b", 1))
        await world.until_used(a=12, b=12)
        await world.until(lambda: not world.cache.problems(), "all is watched again")
        assert world.cache.synced

    play(scene)


def test_after_a_compaction_the_cache_relists_without_deleted_pods(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.make_pod("gone", annotations=by_koordinator())
        await world.until_used(a=12, b=0)
        before = world.cache.lists()["pods"]
        await world.leave()
        await world.delete_pod("gone")
        await world.make_pod("new", annotations=by_koordinator("GPU-b", 1))
        await asyncio.to_thread(_compact, world.plane)
        # A restarted API server has lost its watch cache's history.
        await asyncio.to_thread(world.plane.restart_apiserver)
        assert world.used() == {"GPU-a": 12, "GPU-b": 0}
        await world.follow()
        await world.until_used(a=0, b=12)
        assert world.cache.lists()["pods"] > before

    play(scene)


def test_a_relist_finds_pods_that_were_deleted_and_replaced_meanwhile(play: Play) -> None:
    async def scene(world: World) -> None:
        waiting = await world.make_pod("waiting", bound=False)
        await world.make_pod("gone", annotations=by_koordinator())
        await world.until_used(a=12, b=0)
        half = Request([ContainerRequest("main", core_percent=50, memory_ratio=Fraction(1, 2))])
        placement = place(world.state.fleet, half, world.state.fleet.row_of(world.node))
        assert isinstance(placement, Placement)
        world.state.assume(
            waiting, placement, deadline_s=0.0, annotations=binding.annotations_of(placement)
        )
        assert world.used() == {"GPU-a": 24, "GPU-b": 0}
        await world.leave()
        await world.delete_pod("gone")
        await world.delete_pod("waiting")
        await world.make_pod("gone", annotations=by_koordinator("GPU-b", 1))
        await world.kube.delete(f"{NODES}/{world.node}")
        await world.make_node()
        world._task = asyncio.create_task(world.cache.run())
        await world.cache.relist()
        assert world.used() == {"GPU-a": 0, "GPU-b": 12}
        assert world.state.assumed(waiting) is None
        assert world.blocked_by() is Reason.DEVICE_STALE

    play(scene)


@pytest.mark.parametrize("seed", [1, 2])
def test_after_turmoil_the_cache_equals_a_fresh_list(play: Play, seed: int) -> None:
    chance = random.Random(seed)
    gpus = [[gpu("GPU-a", 0), gpu("GPU-b", 1)], [gpu("GPU-b", 0), gpu("GPU-c", 1)]]
    annotations = [
        by_koordinator("GPU-a", 0),
        by_koordinator("GPU-b", 1),
        by_koordinator("GPU-c", 0),
        {names.ANNOTATION_DEVICE_ALLOCATED: "no JSON"},
        {},
    ]

    async def scene(world: World) -> None:
        serial, live = 0, list[str]()
        for step in range(120):
            act = chance.random()
            if act < 0.45 or not live:
                serial += 1
                name = f"pod-{serial}"
                bound = chance.random() < 0.8
                await world.make_pod(name, bound=bound, annotations=chance.choice(annotations))
                live.append(name)
            elif act < 0.65:
                name = chance.choice(live)
                await world.delete_pod(name, chance.choice((0, 0, 600)))
                live = await world.pods()
            elif act < 0.75:
                await world.finish_pod(chance.choice(live))
            elif act < 0.85:
                wanted = chance.choice(annotations[:3])
                for key, value in wanted.items():
                    await world.annotate_pod(chance.choice(live), key, value)
            elif act < 0.93:
                await world.change_device(*chance.choice(gpus))
            elif act < 0.97:
                await world.kube.delete(f"{NODES}/{world.node}")
                await world.make_node()
                await world.change_device(*chance.choice(gpus))
            else:
                await world.leave()
                world._task = asyncio.create_task(world.cache.run())
            if step in (40, 80):
                await asyncio.to_thread(world.plane.restart_apiserver)
        fresh = World(world.plane, "fresh", world.kube, world.ours)
        fresh.node = world.node
        await fresh.follow()
        try:
            await world.until(lambda: world.known() == fresh.known(), f"{fresh.known()}")
        finally:
            await fresh.leave()
        assert any(fresh.used().values())

    play(scene)


def test_heartbeats_of_nodes_are_small(play: Play) -> None:
    """The server sends metadata alone, without the images and conditions in heartbeats."""

    async def scene(world: World) -> None:
        seen: list[Any] = []
        images = [{"names": [f"image-{n}"], "sizeBytes": n} for n in range(50)]
        path = f"{NODES}/{world.node}"
        await world.kube.patch(f"{path}/status", {"status": {"images": images}})
        async for items, _ in world.kube.list(NODES, only="PartialObjectMetadata"):
            seen += items
        assert seen
        assert not any("status" in each or "spec" in each for each in seen)

    play(scene)


def _compact(plane: ControlPlane) -> None:
    etcd, port = etcd_lab.Access(plane.directory), int(plane._etcd_url.rpartition(":")[2])
    now = json.loads(etcd.ask(port, "/v3/kv/range", b'{"key":"AA=="}'))["header"]["revision"]
    asked = json.dumps({"revision": now, "physical": True})
    etcd.ask(port, "/v3/kv/compaction", asked.encode())
