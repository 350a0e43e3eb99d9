"""One node of a real API server, its pods, and the cache that follows them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from gpuslice.contract import names
from gpuslice.kube import access
from gpuslice.kube.client import Kube
from gpuslice.kube.errors import KubeError
from lab.cluster.controlplane import ControlPlane
from scheduler.cache import DEVICES, LEASES, NODES, Cache
from scheduler.core.place import Placement
from scheduler.core.reasons import Reason
from scheduler.decisions.state import State
from scheduler.kubernetes import binding
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

HALF = {"memory": "12Gi", "core": 50, "ratio": 50}
_DEADLINE_S = 120.0


class World:
    """One node of two GPUs of 24 GiB, initially `gpus`, and pods of one namespace. kube: the
    account that writes them; ours: the scheduler's, with the manifests' rights."""

    def __init__(self, plane: ControlPlane, namespace: str, kube: Kube, ours: Kube) -> None:
        self.plane = plane
        self.ours = ours
        self.node = f"node-{namespace}"
        self.gpus = [gpu("GPU-a", 0), gpu("GPU-b", 1)]
        self.kube = kube
        self.state = State()
        self.cache = Cache(ours, self.state, wall=lambda: RENEWED_S)
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._task: asyncio.Task[None] | None = None
        self._beat = 0

    # --- writes

    async def make_node(self) -> None:
        made = await self.kube.post(NODES, {"apiVersion": "v1", "kind": "Node", **node(self.node)})
        self.node_uid = made["metadata"]["uid"]

    async def make_device(self) -> None:
        await self.kube.post(DEVICES, device(self.node, *self.gpus, node_uid=self.node_uid))

    async def change_device(self, *gpus: dict[str, Any]) -> None:
        path = f"{DEVICES}/{self.node}"
        now = await self.kube.get(path)
        fresh = device(self.node, *gpus, node_uid=self.node_uid)
        now["metadata"]["ownerReferences"] = fresh["metadata"]["ownerReferences"]
        await self.kube.put(path, {**now, "spec": fresh["spec"]})

    async def renew(self) -> None:
        self._beat += 1
        raw = lease(self.node, self._beat)
        path = f"{LEASES}/{raw['metadata']['name']}"
        whole = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **raw}
        if self._beat == 1:
            await self.kube.post(LEASES, whole)
        else:
            await self.kube.patch(path, whole)

    async def make_pod(
        self, name: str, *, bound: bool = True, annotations: dict[str, str] | None = None
    ) -> str:
        """Its UID. bound: created with its node."""
        raw = pod(
            {**container("main", core=50, ratio=50), "image": "none"},
            node=self.node if bound else "",
            annotations=annotations,
        )
        raw["metadata"] = {"name": name, "annotations": raw["metadata"]["annotations"]}
        made = await self.kube.post(self._pods, {"apiVersion": "v1", "kind": "Pod", **raw})
        return str(made["metadata"]["uid"])

    async def bind(self, name: str, uid: str, placement: Placement) -> None:
        namespace = self._pods.split("/")[4]
        annotations = binding.annotations_of(placement)
        body = binding.binding(namespace, name, uid, self.node, annotations)
        await self.ours.post(f"{self._pods}/{name}/binding", body)

    async def finish_pod(self, name: str) -> None:
        await self.kube.patch(f"{self._pods}/{name}/status", {"status": {"phase": "Succeeded"}})

    async def delete_pod(self, name: str, grace_s: int = 0) -> None:
        await self.kube.delete(f"{self._pods}/{name}", {"gracePeriodSeconds": grace_s})

    async def pods(self) -> list[str]:
        """Names of the existing pods, in order."""
        return [each["metadata"]["name"] for each in (await self.kube.get(self._pods))["items"]]

    async def annotate_pod(self, name: str, key: str, value: str) -> None:
        await self.kube.patch(f"{self._pods}/{name}", {"metadata": {"annotations": {key: value}}})

    async def remove(self) -> None:
        lease_path = f"{LEASES}/{names.LEASE_AGENT_PREFIX}{self.node}"
        for path in (f"{NODES}/{self.node}", f"{DEVICES}/{self.node}", lease_path):
            try:
                await self.kube.delete(path)
            except KubeError as error:
                assert error.status == 404, error

    # --- the cache's content

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

    def blocked_by(self) -> Reason:
        return Reason(int(self.state.fleet.blocked_by[self.state.fleet.row_of(self.node)]))

    def known(self) -> object:
        return self.used(), self.blocked_by(), self.problems()

    def problems(self) -> list[str]:
        return [each.text for each in self.state.problems() if each.node == self.node]

    async def until(self, true: Callable[[], object], what: str) -> None:
        try:
            async with asyncio.timeout(_DEADLINE_S):
                while not true():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        except TimeoutError:
            state = (self.used(), self.blocked_by(), self.problems(), self.cache.problems())
            raise AssertionError(f"never: {what}; known: {state}") from None

    async def until_used(self, **gib: int) -> None:
        wanted = {f"GPU-{key}": value for key, value in gib.items()}
        await self.until(lambda: self.used() == wanted, f"used: {wanted}")


@asynccontextmanager
async def world_of(plane: ControlPlane, namespace: str) -> AsyncIterator[World]:
    admin, ours = (str(plane.kubeconfig(user)) for user in ("admin", "scheduler"))
    async with Kube(access.load(admin)) as kube, Kube(access.load(ours)) as scheduler:
        world = World(plane, namespace, kube, scheduler)
        try:
            await world.make_node()
            await world.make_device()
            await world.renew()
            await world.follow()
            assert world.blocked_by() is Reason.FITS
            yield world
        finally:
            await world.leave()
            await world.remove()


Play = Callable[[Callable[[World], Awaitable[None]]], None]


def by_koordinator(uuid: str = "GPU-a", minor: int = 0) -> dict[str, str]:
    return {names.ANNOTATION_DEVICE_ALLOCATED: allocated((uuid, minor, resources(**HALF)))}
