"""The agent's connection to the API server: connects and runs the tasks that need it.

The agent serves containers from the runtime's data, even while the API server does not answer. A
failed connection is logged and retried. After an exception these tasks restart, and the rest of
the agent continues. This module is imported only if an API server is configured.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from gpuslice.contract import names
from gpuslice.kube import access
from gpuslice.kube.access import Access, AccessError
from gpuslice.kube.client import Kube
from gpuslice.kube.errors import KubeError
from gpuslice.kube.fields import Json
from gpuslice.kube.log_lines import Line
from gpuslice.kube.reflector import UNLISTED, Reflector
from nri_plugin.containers.parts import Parts
from nri_plugin.kube.claims_driver import ClaimsDriver
from nri_plugin.kube.inventory_publisher import DEVICES, NODES, InventoryPublisher
from nri_plugin.kube.reports import Events, Heartbeat
from nri_plugin.kube.verification import Verification
from nri_plugin.policy import kube_objects, totals
from nri_plugin.policy.bound_pods import BoundPods
from nri_plugin.policy.gpu_modes import GpuModes
from nri_plugin.protocol import runtimes
from nri_plugin.readiness import Readiness
from nri_plugin.supervision import supervised

_LOG: Final = logging.getLogger(__name__)

_PODS: Final = "/api/v1/pods"
_AGAIN_S: Final = 10.0
_LOOK_S: Final = 0.5
_VERSION_S: Final = 60.0
OLDEST: Final = (1, 30, 0)
TOO_OLD: Final = (
    "Kubernetes {} is not supported: must be 1.30 or newer, because older ones lack the"
    " ValidatingAdmissionPolicy v1 that keeps users from forging grants"
)
_PAGE: Final = 100
"""Pods per page of a list. Only one page is in memory at a time."""


class Cluster:
    """The connection. It keeps `parts.bound_pods` equal to the API server's pods of this node."""

    def __init__(self, parts: Parts, modes: GpuModes) -> None:
        self._parts = parts
        self._modes = modes
        self._metrics = parts.metrics
        self._problem = ""
        self._verification = Verification(parts)

    async def run(self) -> None:
        """Run until cancelled. At the end the Lease is marked not ready."""
        await supervised("API server", self._connected)

    async def _connected(self) -> None:
        """Connect, and run until the connection fails."""
        try:
            server = await asyncio.to_thread(self._load)
            async with Kube(server, self._load, user_agent=names.AGENT) as kube:
                await self._run(kube)
        except AccessError as error:
            self._log(str(error))
            self._metrics.api_up.set(0)
            for _ in range(round(_AGAIN_S / _LOOK_S)):
                self._verification.check(watching=False)
                await asyncio.sleep(_LOOK_S)
        except Exception:
            self._metrics.api_up.set(0)
            raise

    def _load(self) -> Access:
        chosen = self._parts.settings
        return access.load(chosen.kubeconfig, chosen.environment)

    async def _run(self, kube: Kube) -> None:
        node_name = self._parts.settings.node_name
        publisher = InventoryPublisher(kube, self._parts, self._modes)
        heartbeat = Heartbeat(kube, self._parts, lambda: publisher.node_uid)
        events = Events(kube, self._parts, lambda: publisher.node_uid)
        own = {"fieldSelector": f"metadata.name={node_name}"}
        here = {
            "fieldSelector": f"spec.nodeName={node_name},status.phase!=Succeeded,"
            "status.phase!=Failed"
        }
        pods = _Pods(self._parts.bound_pods, lambda: reflectors["pods"].listing)
        reflectors = {
            "node": Reflector(kube, NODES, publisher.node, query=own),
            "Device": Reflector(kube, DEVICES, publisher.device, query=own),
            "pods": Reflector(kube, _PODS, pods, query=here, page=_PAGE),
        }

        def synced() -> bool:
            return all(each.synced for each in reflectors.values())

        driver = ClaimsDriver(kube, self._parts, publisher, synced)

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(events.run(), name="events")
                for name, reflector in reflectors.items():
                    group.create_task(reflector.run(), name=f"follow {name}")
                group.create_task(publisher.run(synced), name="inventory publisher")
                group.create_task(supervised("claims", driver.run), name="claims")
                group.create_task(heartbeat.run(), name="heartbeat")
                group.create_task(self._observe(reflectors), name="observe")
                group.create_task(check_version(kube, self._parts.readiness), name="version")
        except asyncio.CancelledError:
            await heartbeat.mark_stopped()
            raise

    async def _observe(self, reflectors: Mapping[str, Reflector]) -> None:
        """Verify the grants, and add a notice for each pod on a failed GPU. Report the connection's
        state in the metrics, and in the log when the state changes."""
        while True:
            pods = reflectors["pods"]
            self._verification.check(pods.synced and not pods.problem)
            inventory, holds = self._parts.inventory, self._parts.ledger.holds()
            # Before NVML's first answer a working GPU may not be in inventory.seen.
            if inventory.seen or inventory.problem is None:
                for notice in totals.failed_gpu_notices(holds, inventory.seen):
                    self._parts.notices.add(notice)
            problems = {name: f.problem for name, f in reflectors.items() if f.problem}
            self._metrics.api_up.set(not problems)
            self._log("; ".join(f"{n}: {text}" for n, text in problems.items() if text != UNLISTED))
            await asyncio.sleep(_LOOK_S)

    def _log(self, problem: str) -> None:
        if problem and problem != self._problem:
            _LOG.warning(Line("API server unreachable", problem=problem))
        elif self._problem and not problem:
            _LOG.info(Line("API server reachable again"))
        self._problem = problem


async def check_version(kube: Kube, readiness: Readiness) -> None:
    """Record whether the API server's version is supported, until cancelled: it may be upgraded."""
    while True:
        with suppress(KubeError):
            version = str((await kube.get("/version")).get("gitVersion"))
            parsed = runtimes.parse(version)
            is_old = parsed is not None and parsed < OLDEST
            readiness.kubernetes = TOO_OLD.format(version) if is_old else None
        await asyncio.sleep(_VERSION_S)


@dataclass(frozen=True, slots=True)
class _Pods:
    """Receives this node's pods from the watch. listing: whether the watch receives a list now."""

    bound_pods: BoundPods
    listing: Callable[[], bool]

    def observed(self, raw: Json) -> str:
        bound = kube_objects.bound(raw)
        self.bound_pods.put(bound, self.listing())
        return bound.pod.uid

    def deleted(self, raw: Json) -> None:
        self.bound_pods.deleted(kube_objects.bound(raw).pod.uid)

    def listed(self, keys: set[str]) -> None:
        self.bound_pods.keep(keys)
