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
from scheduler.binder import Binder
from scheduler.cache import Cache
from scheduler.decisions.state import State
from scheduler.decisions.verbs import Verbs
from scheduler.extender import Extender
from scheduler.kubernetes.arguments import BindingArguments
from scheduler.leadership import Leadership
from scheduler.metrics import Metrics
from tests.cluster.admission.scheduler_lease import KubeScheduler
from tests.requests.pods import asking, pod
from tests.scheduler import calls
from tests.support import until

pytestmark = pytest.mark.cluster

_DEADLINE_S: Final = 120.0
_GOODBYE_S: Final = 0.25
"""aiohttp does not wait for the end of TLS connections."""


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
        self.plane = plane
        self.namespace = namespace
        self.state = State()
        self.leadership = Leadership(namespace)
        self.cache = Cache(ours, self.state, observe_scheduler=self.leadership.observe)
        self.verbs = Recorded(self.state)
        metrics = Metrics()
        self.binder = Binder(self.state, ours, self.leadership, self.verbs)
        self.extender = Extender(
            self.verbs, self.binder, self.leadership, lambda: self.cache.synced, metrics
        )
        self.nodes = [node.name for node in Shape(nodes=2, prefix=f"{namespace}-").all_nodes()]
        self._kube = kube
        self.pods = f"/api/v1/namespaces/{namespace}/pods"

    async def make(self, name: str, percent: int = 0, **more: Any) -> dict[str, Any]:
        """A pod that requests the given part of a GPU."""
        asked = {names.RESOURCE_CORE: f"{percent}", names.RESOURCE_MEMORY_RATIO: f"{percent}"}
        raw = pod(asking(asked if percent else {}), name=name)
        raw["spec"] |= more
        made: dict[str, Any] = await self._kube.post(self.pods, raw)
        return made

    async def get(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = await self._kube.get(f"{self.pods}/{name}")
        return found

    def ask(self, raw: dict[str, Any], *nodes: str) -> Any:
        return calls.loads(self.verbs.filter(calls.arguments(raw, nodes)))

    async def bind(self, raw: dict[str, Any], node: str) -> str:
        assert await self.leadership.admit() == ""
        metadata = raw["metadata"]
        wanted = BindingArguments(self.namespace, metadata["name"], metadata["uid"], node)
        return (await self.binder.bind(wanted)).error

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
        """The condition that kube-scheduler writes into the pod, once it contains the given
        part."""
        async with asyncio.timeout(_DEADLINE_S):
            while True:
                conditions = (await self.get(name)).get("status", {}).get("conditions") or ()
                said = "".join(each.get("message", "") for each in conditions)
                if part in said:
                    return said
                await asyncio.sleep(0.2)

    @asynccontextmanager
    async def kube_scheduler(self, directory: Path) -> AsyncIterator[None]:
        runner = await self.extender.serve("127.0.0.1", 0)
        host, port = runner.addresses[0][:2]
        written = manifests.configuration()
        written["extenders"][0]["urlPrefix"] = f"http://{host}:{port}"
        config = directory / "kube-scheduler.yaml"
        config.write_text(yaml.safe_dump({**written, "leaderElection": {"leaderElect": False}}))
        name = f"kube-scheduler-{self.namespace}"
        process = await asyncio.to_thread(self.plane.start_kube_scheduler, config, None, name)
        try:
            yield
        finally:
            process.kill()
            await runner.cleanup()


@pytest.fixture(autouse=True)
def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    return uvloop.new_event_loop


@pytest.fixture
def gpus() -> int:
    """Number per node."""
    return 1


@pytest.fixture
@asynccontextmanager
async def world(installed: ControlPlane, gpus: int) -> AsyncIterator[World]:
    """A new namespace, and two nodes."""
    namespace = f"test-{secrets.token_hex(4)}"
    installed.kubectl("create", "namespace", namespace)
    nodes = Shape(nodes=2, gpus=gpus, prefix=f"{namespace}-").all_nodes()
    lease = KubeScheduler(installed, namespace)
    admin, ours = (access.load(str(installed.kubeconfig(user))) for user in ("admin", "scheduler"))
    try:
        with Fleet(installed, nodes):
            async with Kube(admin) as kube, Kube(ours) as own:
                world = World(installed, namespace, kube, own)
                running = (world.cache.run(), world.leadership.run(world.cache.relist))
                tasks = {asyncio.create_task(each) for each in running}
                try:
                    await asyncio.to_thread(lease.acquire)
                    await asyncio.wait_for(world.cache.wait_synced(), _DEADLINE_S)
                    await world.admitted()
                    yield world
                finally:
                    await asyncio.to_thread(lease.release)
                    for task in tasks:
                        task.cancel()
                    await asyncio.wait(tasks)
            await asyncio.sleep(_GOODBYE_S)
    finally:
        installed.remove_namespace(namespace)


BETWEEN = b',"Nodes":null,"NodeNames":['


@pytest.fixture
def priority(installed: ControlPlane) -> Iterator[str]:
    installed.kubectl("create", "priorityclass", "above-all", "--value=1000")
    yield "above-all"
    installed.kubectl("delete", "priorityclass", "above-all")


@pytest.mark.parametrize("gpus", [2])
async def test_pods_are_bound_by_a_real_kube_scheduler_and_none_is_preempted_while_we_may_not_write(
    world: World, priority: str, tmp_path: Path
) -> None:
    """kube-scheduler treats the status as an error, unlike an answer without nodes."""
    large, small = ([f"{size}-{number}" for number in range(4)] for size in (60, 40))
    one, two = world.nodes
    async with world.kube_scheduler(tmp_path):
        for name in large:
            await world.make(name, 60)
        await world.make("plain")
        await world.until_bound(*large)
        await world.make("fifth", 60)
        said = await world.condition("fifth", "no GPU")
        assert "2 no GPU with enough free memory and core at" in said
        await world.condition("plain", "")
        for name in small:
            await world.make(name, 40)
        await world.until_bound(*small)
        world.leadership.leaving = True
        await world.make("urgent", 50, priorityClassName=priority)
        said = await world.condition("urgent", "preempt")
        assert "failed preempt with extender at URL" in said and "code 503" in said
    assert (world.held(one), world.held(two)) == (200, 200)
    for name in (*large, *small, "plain"):
        raw = await world.get(name)
        annotations = raw["metadata"].get("annotations", {})
        assert raw["spec"]["nodeName"] in (one, two)
        assert "deletionTimestamp" not in raw["metadata"]
        assert (names.ANNOTATION_GRANTS in annotations) is (name != "plain")
        if name != "plain":
            assert annotations[names.ANNOTATION_WRITER] == world.leadership.writer
    for body in (*world.verbs.filtered, *world.verbs.prioritized):
        assert (body[:18], body.count(BETWEEN), body[-3:]) == (b'{"Pod":{"metadata"', 1, b'"]}')
    heads = {body.partition(BETWEEN)[0] for body in world.verbs.filtered}
    assert {body.partition(BETWEEN)[0] for body in world.verbs.prioritized} <= heads


async def test_a_binding_that_a_frozen_server_applies_later_overfills_nothing(world: World) -> None:
    """The POST times out here, and is applied when the server continues. Until then its capacity is
    not given to another pod, whatever calls arrive."""
    one, _ = world.nodes
    first = await world.make("first", 10)
    world.ask(first, one)
    # This opens the connection: on a new one nothing would be sent.
    assert await world.bind(first, one) == ""
    pods = [await world.make(f"p{number}", 60) for number in range(2)]
    for raw in pods:
        world.ask(raw, one)
    with world.plane.apiserver.frozen():
        said = await world.bind(pods[0], one)
        assert said.startswith(f"binding to {one} not confirmed: ")
        assert world.held(one) == 70
    await world.admitted()
    assert "no GPU" in await world.bind(pods[1], one)
    assert await world.bind(pods[0], one) == ""
    await world.until_bound("p0")
    assert world.held(one) == 70
