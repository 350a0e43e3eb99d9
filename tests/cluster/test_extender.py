"""The extender and the binder between a real kube-scheduler and a real API server."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import uvloop
import yaml

from gpuslice.contract import names
from gpuslice.kube import access
from gpuslice.kube.client import Kube
from lab.cluster import manifests
from lab.cluster.controlplane import ControlPlane
from lab.cluster.fleet import Fleet
from lab.cluster.fleet_objects import Shape
from lab.cluster.supervised import Process
from scheduler.binder import Binder
from scheduler.cache import Cache
from scheduler.decisions.state import State
from scheduler.decisions.verbs import Verbs
from scheduler.extender import Extender
from scheduler.leadership import Leadership
from scheduler.metrics import Metrics
from tests.cluster.admission.scheduler_lease import KubeScheduler
from tests.requests.pods import Json, asking, pod
from tests.support import until

pytestmark = pytest.mark.cluster

_DEADLINE_S: Final = 120.0
_GOODBYE_S: Final = 0.25
"""aiohttp does not wait for the end of TLS connections."""
_BETWEEN: Final = b',"Nodes":null,"NodeNames":['


class Recorded(Verbs):
    """Records kube-scheduler's calls, byte for byte."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.filtered: list[bytes] = []
        self.prioritized: list[bytes] = []

    def filter(self, body: bytes) -> bytes:
        self.filtered.append(body)
        return super().filter(body)

    def prioritize(self, body: bytes) -> bytes:
        self.prioritized.append(body)
        return super().prioritize(body)


class World:
    """The extender with the manifests' rights, and the pods of one namespace."""

    def __init__(self, plane: ControlPlane, namespace: str, kube: Kube, ours: Kube) -> None:
        self.state = State()
        self.leadership = Leadership(namespace)
        self.cache = Cache(ours, self.state, observe_scheduler=self.leadership.observe)
        self.verbs = Recorded(self.state)
        binder = Binder(self.state, ours, self.leadership, self.verbs)
        self.extender = Extender(
            self.verbs, binder, self.leadership, lambda: self.cache.synced, Metrics()
        )
        self._kube = kube
        self._pods = f"/api/v1/namespaces/{namespace}/pods"

    async def make(self, name: str, percent: int = 0, **more: Any) -> None:
        """A pod that requests the given part of a GPU."""
        asked = {names.RESOURCE_CORE: f"{percent}", names.RESOURCE_MEMORY_RATIO: f"{percent}"}
        raw = pod(asking(asked if percent else {}), name=name)
        raw["spec"] |= more
        await self._kube.post(self._pods, raw)

    async def get(self, name: str) -> Json:
        found: Json = await self._kube.get(f"{self._pods}/{name}")
        return found

    async def admitted(self) -> None:
        """Waits until this process may bind, as verbs do."""
        async with asyncio.timeout(_DEADLINE_S):
            while said := await self.leadership.admit():
                assert "gpuslice does not bind here" in said
                await asyncio.sleep(0.1)

    def held(self, node: str) -> int:
        """Percent held of the node's GPUs."""
        return int(self.state.fleet.used_core[self.state.fleet.row_of(node)].sum())

    async def until_bound(self, *wanted: str) -> None:
        """Waits until the cache has observed the pods as bound."""
        uids = [(await self.get(name))["metadata"]["uid"] for name in wanted]
        await asyncio.to_thread(
            until, lambda: all(map(self.state.is_bound, uids)), f"{wanted} are bound"
        )

    async def condition(self, name: str, part: str) -> str:
        """The condition that kube-scheduler writes into the pod, once it contains the part."""
        async with asyncio.timeout(_DEADLINE_S):
            while True:
                conditions = (await self.get(name)).get("status", {}).get("conditions") or ()
                said = "".join(each.get("message", "") for each in conditions)
                if part in said:
                    return said
                await asyncio.sleep(0.2)


@pytest.fixture(autouse=True)
def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    return uvloop.new_event_loop


@pytest.fixture
@asynccontextmanager
async def world(installed: ControlPlane, tmp_path: Path) -> AsyncIterator[World]:
    """It may bind, and a kube-scheduler calls it."""
    namespace = f"test-{secrets.token_hex(4)}"
    installed.kubectl("create", "namespace", namespace)
    lease = KubeScheduler(installed, namespace)
    admin, ours = (access.load(str(installed.kubeconfig(user))) for user in ("admin", "scheduler"))
    async with Kube(admin) as kube, Kube(ours) as own:
        world = World(installed, namespace, kube, own)
        running = (world.cache.run(), world.leadership.run(world.cache.relist))
        tasks = {asyncio.create_task(each) for each in running}
        try:
            await asyncio.to_thread(lease.acquire)
            await asyncio.wait_for(world.cache.wait_synced(), _DEADLINE_S)
            await world.admitted()
            async with _called(installed, world.extender, tmp_path / "kube-scheduler.yaml"):
                yield world
        finally:
            await asyncio.to_thread(lease.release)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            installed.remove_namespace(namespace)
    await asyncio.sleep(_GOODBYE_S)


@asynccontextmanager
async def _called(plane: ControlPlane, extender: Extender, config: Path) -> AsyncIterator[None]:
    """A kube-scheduler calls the extender."""
    runner = await extender.serve("127.0.0.1", 0)
    host, port = runner.addresses[0][:2]

    def start() -> Process:
        written = manifests.configuration() | {"leaderElection": {"leaderElect": False}}
        written["extenders"][0]["urlPrefix"] = f"http://{host}:{port}"
        config.write_text(yaml.safe_dump(written))
        return plane.start_kube_scheduler(config, None, "called")

    process = await asyncio.to_thread(start)
    try:
        yield
    finally:
        process.kill()
        await runner.cleanup()


@pytest.fixture
def priority(installed: ControlPlane) -> Iterator[str]:
    installed.kubectl("create", "priorityclass", "above-all", "--value=1000")
    yield "above-all"
    installed.kubectl("delete", "priorityclass", "above-all")


@pytest.fixture
def nodes(installed: ControlPlane) -> Iterator[list[str]]:
    with Fleet(installed, Shape(nodes=2, gpus=2, prefix="extender-").all_nodes()) as fleet:
        yield list(fleet.nodes)


async def test_pods_are_bound_by_a_real_kube_scheduler_and_none_is_preempted_while_we_may_not_write(
    nodes: list[str], world: World, priority: str
) -> None:
    """kube-scheduler treats the status as an error, unlike an answer without nodes."""
    large, small = ([f"{size}-{number}" for number in range(4)] for size in (60, 40))
    for name in large:
        await world.make(name, 60)
    await world.make("plain")
    await world.until_bound(*large)
    await world.make("fifth", 60)
    said = await world.condition("fifth", "no GPU")
    assert "2 no GPU with enough free memory and core at" in said
    for name in small:
        await world.make(name, 40)
    await world.until_bound(*small)
    world.leadership.leaving = True
    await world.make("urgent", 50, priorityClassName=priority)
    said = await world.condition("urgent", "preempt")
    assert "failed preempt with extender at URL" in said and "code 503" in said
    assert [world.held(node) for node in nodes] == [200, 200]
    for name in (*large, *small, "plain"):
        raw = await world.get(name)
        assert raw["spec"]["nodeName"] in nodes
        assert "deletionTimestamp" not in raw["metadata"]
        annotations = raw["metadata"].get("annotations", {})
        assert (names.ANNOTATION_GRANTS in annotations) is (name != "plain")
        if name != "plain":
            assert annotations[names.ANNOTATION_WRITER] == world.leadership.writer
    for body in (*world.verbs.filtered, *world.verbs.prioritized):
        assert (body[:18], body.count(_BETWEEN), body[-3:]) == (b'{"Pod":{"metadata"', 1, b'"]}')
    heads = {body.partition(_BETWEEN)[0] for body in world.verbs.filtered}
    assert {body.partition(_BETWEEN)[0] for body in world.verbs.prioritized} <= heads
