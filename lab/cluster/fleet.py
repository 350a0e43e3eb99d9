"""Simulated nodes at an API server: GPUs, and agents that renew their Leases.

A node has no kubelet and exists only as its objects. An agent exists only as a Lease that is
renewed. All requests run in a separate thread, so Leases are renewed while the caller blocks.
Methods return when the API server has stored the change.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import uvloop

from gpuslice.contract import names
from gpuslice.kube.client import Kube
from gpuslice.kube.errors import KubeError
from lab import Running
from lab.cluster.api import TIMEOUT_S, connected, each
from lab.cluster.controlplane import ControlPlane
from lab.cluster.fleet_objects import Node, device_json, lease_json, node_json

RENEW_S: Final = 10.0
"""Interval between two renewals of an agent's Lease."""
_TOGETHER_S: Final = 0.25
"""Renewals due within this interval are sent together. Sent separately, they take 25 % more CPU."""
_NODES: Final = "/api/v1/nodes"
_DEVICES: Final = f"/apis/{names.DEVICE_API_VERSION}/{names.DEVICE_PLURAL}"
_LEASES: Final = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases"
_T = TypeVar("_T")


def now() -> str:
    """Return the current time in the format of a Lease's renewTime."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


async def create(kube: Kube, node: Node) -> str:
    """Create the node, its inventory and its agent's Lease. Return the node's UID."""
    made = await kube.post(_NODES, node_json(node), timeout_s=TIMEOUT_S)
    uid = str(made["metadata"]["uid"])
    for path, body in ((_DEVICES, device_json(node, uid)), (_LEASES, lease_json(node.name, now()))):
        await kube.post(path, body, timeout_s=TIMEOUT_S)
    return uid


class Fleet(Running):
    """A context manager: the nodes exist at the control plane until its exit."""

    def __init__(self, plane: ControlPlane, nodes: Iterable[Node]) -> None:
        self.nodes: dict[str, Node] = {node.name: node for node in nodes}
        self._plane = plane
        self._connection = AsyncExitStack()
        self._uids: dict[str, str] = {}
        self._ready = dict.fromkeys(self.nodes, "true")
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fleet", daemon=True)
        self._renewing: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._thread.start()
        self._call(self._begin())

    def stop(self) -> None:
        """Delete Nodes, Devices and Leases. Idempotent."""
        if self._loop.is_closed():
            return
        try:
            self._call(self._end())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def set_ready(self, name: str, ready: str = "true") -> None:
        """Set and renew the agent's readiness: "true", or why it can serve no container."""
        self._ready[name] = ready
        self._call(self._renew(name))

    def _call(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(900.0)

    # --- in the thread

    async def _begin(self) -> None:
        connecting = connected(self._plane.kubeconfig())
        self._kube: Kube = await self._connection.enter_async_context(connecting)
        await each(self.nodes.values(), self._create)
        # The renewals are spread over the interval, a few at the same time.
        parts = round(RENEW_S / _TOGETHER_S)
        for number, name in enumerate(self.nodes):
            renewals = self._keep_renewing(name, number % parts * _TOGETHER_S)
            self._renewing.append(asyncio.create_task(renewals))

    async def _end(self) -> None:
        for renewing in self._renewing:
            renewing.cancel()
        await asyncio.gather(*self._renewing, return_exceptions=True)
        await each(tuple(self._uids), self._remove)
        await self._connection.aclose()

    async def _create(self, node: Node) -> None:
        self._uids[node.name] = await create(self._kube, node)

    async def _remove(self, name: str) -> None:
        self._uids.pop(name, None)
        lease = f"{_LEASES}/{names.LEASE_AGENT_PREFIX}{name}"
        for path in (lease, f"{_DEVICES}/{name}", f"{_NODES}/{name}"):
            try:
                await self._kube.delete(path, timeout_s=TIMEOUT_S)
            except KubeError as error:
                if error.status != 404:  # a test may have deleted the object
                    raise

    async def _renew(self, name: str) -> None:
        renewed = lease_json(name, now(), self._ready[name])
        annotations = {"annotations": renewed["metadata"]["annotations"]}
        path = f"{_LEASES}/{names.LEASE_AGENT_PREFIX}{name}"
        body = {"metadata": annotations, "spec": renewed["spec"]}
        await self._kube.patch(path, body, timeout_s=TIMEOUT_S)

    async def _keep_renewing(self, name: str, first_s: float) -> None:
        """Renew the Lease until the node is removed. Ignore errors of the API server."""
        await asyncio.sleep(first_s)
        while name in self._uids:
            with suppress(KubeError):
                await self._renew(name)
            await asyncio.sleep(RENEW_S)
