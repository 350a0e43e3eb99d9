"""The cache over a real API server's objects, with failures of either."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpuslice.contract import names
from gpuslice.kube import access
from gpuslice.kube.client import Kube
from lab import pages
from lab.cluster import manifests
from lab.cluster.controlplane import ControlPlane
from scheduler.cache import DEVICES, LEASES, NODES, Cache
from scheduler.core.reasons import Reason
from scheduler.decisions.state import State
from tests.scheduler.objects import (
    RENEWED_S,
    Gi,
    allocated,
    container,
    device,
    gpu,
    lease,
    node,
    pod,
    resources,
)
from tests.support import until_async

pytestmark = pytest.mark.cluster


class World:
    """One node of two GPUs of 24 GiB, and pods of one namespace. kube: the account that writes
    them; ours: the scheduler's, with the manifests' rights."""

    def __init__(self, plane: ControlPlane, namespace: str, kube: Kube, ours: Kube) -> None:
        self.plane = plane
        self.node = f"node-{namespace}"
        self.kube = kube
        self.state = State()
        self.cache = Cache(ours, self.state, wall=lambda: RENEWED_S)
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._task: asyncio.Task[None] | None = None

    async def make(self) -> None:
        made = await self.kube.post(NODES, {"apiVersion": "v1", "kind": "Node", **node(self.node)})
        uid, gpus = made["metadata"]["uid"], [gpu("GPU-a", 0), gpu("GPU-b", 1)]
        await self.kube.post(DEVICES, device(self.node, *gpus, node_uid=uid))
        whole = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **lease(self.node, 1)}
        await self.kube.post(LEASES, whole)

    async def remove(self) -> None:
        agents = f"{LEASES}/{names.LEASE_AGENT_PREFIX}{self.node}"
        for path in (f"{NODES}/{self.node}", f"{DEVICES}/{self.node}", agents):
            await self.kube.delete(path)

    async def make_pod(self, name: str, uuid: str = "GPU-a", minor: int = 0) -> None:
        """It holds half of the GPU, by Koordinator's annotation."""
        half = resources(memory="12Gi", core=50, ratio=50)
        annotations = {names.ANNOTATION_DEVICE_ALLOCATED: allocated((uuid, minor, half))}
        main = {**container("main", core=50, ratio=50), "image": "none"}
        raw = pod(main, node=self.node, annotations=annotations)
        raw["metadata"] = {"name": name, "annotations": annotations}
        await self.kube.post(self._pods, {"apiVersion": "v1", "kind": "Pod", **raw})

    async def delete_pod(self, name: str, grace_s: int = 0) -> None:
        await self.kube.delete(f"{self._pods}/{name}", {"gracePeriodSeconds": grace_s})

    async def follow(self) -> None:
        self._task = asyncio.create_task(self.cache.run())
        await self.cache.wait_synced()

    async def leave(self) -> None:
        """Stops the watches; the state stays."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait({self._task})

    def used(self) -> dict[str, int]:
        """GiB used of each GPU of the node."""
        fleet, row = self.state.fleet, self.state.fleet.row_of(self.node)
        return {
            each.uuid: int(fleet.used_bytes[row, slot]) // Gi
            for slot, each in enumerate(fleet.gpus[row])
        }

    async def until_used(self, a: int, b: int) -> None:
        await until_async(lambda: self.used() == {"GPU-a": a, "GPU-b": b})


@pytest.fixture
@asynccontextmanager
async def world(control_plane: ControlPlane, namespace: str) -> AsyncIterator[World]:
    rights = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    control_plane.apply_json(*manifests.objects(*rights))
    admin, ours = (str(control_plane.kubeconfig(user)) for user in ("admin", "scheduler"))
    async with Kube(access.load(admin)) as kube, Kube(access.load(ours)) as scheduler:
        world = World(control_plane, namespace, kube, scheduler)
        await world.make()
        await world.follow()
        try:
            row = world.state.fleet.row_of(world.node)
            assert Reason(int(world.state.fleet.blocked_by[row])) is Reason.FITS
            yield world
        finally:
            await world.leave()
            await world.remove()


async def test_a_terminating_pod_holds_its_gpu_until_it_is_deleted(world: World) -> None:
    await world.make_pod("slow")
    await world.until_used(a=12, b=0)
    await world.delete_pod("slow", grace_s=600)
    # A later event of the watch has arrived, so the deletion has too.
    await world.make_pod("after", "GPU-b", 1)
    await world.until_used(a=12, b=12)
    await world.delete_pod("slow")
    await world.until_used(a=0, b=12)


async def test_after_a_compaction_the_cache_relists_without_deleted_pods(world: World) -> None:
    await world.make_pod("gone")
    await world.until_used(a=12, b=0)
    before = world.cache.lists()["pods"]
    await world.leave()
    await world.delete_pod("gone")
    await world.make_pod("new", "GPU-b", 1)
    await asyncio.to_thread(_compact, world.plane)
    # A restarted API server has lost its watch cache's history.
    await asyncio.to_thread(world.plane.restart_apiserver)
    assert world.used() == {"GPU-a": 12, "GPU-b": 0}
    await world.follow()
    await world.until_used(a=0, b=12)
    assert world.cache.lists()["pods"] > before


def _compact(plane: ControlPlane) -> None:
    def etcd(path: str, body: object) -> Any:
        return json.loads(pages.get(plane.etcd_socket, path, posted=json.dumps(body))[1])

    now = etcd("/v3/kv/range", {"key": "AA=="})["header"]["revision"]
    etcd("/v3/kv/compaction", {"revision": now, "physical": True})
