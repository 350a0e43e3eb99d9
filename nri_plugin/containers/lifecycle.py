"""The events in a container's life, of any runtime: listed, created, started, stopped, removed.

The event loop never blocks on a disk, a driver or a tenant: that work runs in threads and a child,
under deadlines. On a timeout a container with a share is refused. A method that returns a coroutine
waits for that work; one that returns None has done all of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Generic, TypeVar

from kube.log_lines import Line
from nri_plugin.containers.creation import ContainerCreation, Delivery
from nri_plugin.containers.records import ContainerRecords
from nri_plugin.containers.start import ContainerStart
from nri_plugin.gpu.contexts import Contexts
from nri_plugin.gpu.inventory import Inventory
from nri_plugin.host.files import RunDirectory
from nri_plugin.host.node import Node
from nri_plugin.host.store import Store
from nri_plugin.metrics import Metrics
from nri_plugin.policy.bound_pods import BoundPods
from nri_plugin.policy.model import Container, Pod
from nri_plugin.policy.notices import Notices
from nri_plugin.policy.pod_policy import ClaimSource
from nri_plugin.policy.recovery import Running
from nri_plugin.policy.refusals import Reason, Refused, refused
from nri_plugin.settings import Settings
from nri_plugin.threads import Worker

_LOG: Final = logging.getLogger(__name__)
_T = TypeVar("_T")

_COLLECT_EVERY_S: Final = 10.0


class Lifecycle(Generic[_T]):
    """claims: where the containers' claims come from. deliver: how adjustments reach them."""

    def __init__(
        self,
        settings: Settings,
        inventory: Inventory,
        contexts: Contexts,
        files: RunDirectory,
        store: Store,
        metrics: Metrics,
        bound_pods: BoundPods,
        notices: Notices,
        claims: ClaimSource,
        deliver: Delivery[_T],
    ) -> None:
        self._claims = claims
        self._files = files
        self._inventory = inventory
        self._collecting: asyncio.TimerHandle | None = None
        self.worker = Worker("files")
        self.node = Node(settings, inventory, store, self.worker, bound_pods)
        self.records: ContainerRecords[_T] = ContainerRecords(
            settings, files, self.worker, metrics, bound_pods, self.node.modes, notices, claims
        )
        self._start = ContainerStart(
            settings,
            files,
            self.worker,
            metrics,
            notices,
            lambda path: self.node.driver_root.seen(path),
        )
        self._creation = ContainerCreation(
            settings,
            self.node,
            inventory,
            contexts,
            self.records,
            files,
            self.worker,
            bound_pods,
            notices,
            claims,
            deliver,
        )

    def close(self) -> None:
        """Start no more work."""
        if self._collecting is not None:
            self._collecting.cancel()
        self.records.sweeper.stop()
        self._start.close()

    async def listed(self, running: Sequence[Running]) -> None:
        """Replace the state by what the runtime lists: the holds, which the next creation depends
        on. The runtime waits for no more than that: the containers are verified afterwards."""
        await self.records.take_over(running, self._inventory.gpus)
        self._start.verify(
            [
                (one.pod, Container(one.id, one.name, mounts=one.mounts), one.key)
                for one in running
                if one.mounts and one.key is not None
            ]
        )
        if self._collecting is None:
            self._collect()
        _LOG.info(Line("synchronized", containers=len(running)))

    def _collect(self) -> None:
        """Regularly: a container that mounted an earlier release may have been removed."""
        self.node.collect_releases(self._files.mounted)
        loop = asyncio.get_running_loop()
        self._collecting = loop.call_later(_COLLECT_EVERY_S, self._collect)

    async def created(self, pod: Pod, container: Container) -> _T | None:
        """Return what the runtime must apply; None: nothing. Raises Refused."""
        return await self._creation.create(pod, container)

    def starts(
        self, pod: Pod, container: Container, key: str | None
    ) -> Coroutine[Any, Any, None] | None:
        """The container is created, and not yet running. key: of the files that it has mounted.
        Raises Refused."""
        if not self._claims.has_shares(pod):
            self.records.starts(container.id)
            return None
        return self._check(pod, container, key)

    async def _check(self, pod: Pod, container: Container, key: str | None) -> None:
        answer = self.records.starts(container.id)
        if key is not None:
            await self._start.with_share(pod, container, key)
            return
        without = answer is not None and answer.wanted.key is None
        if not without and self.gets_gpu(pod, container.name):
            raise refused(Reason.NOT_ADJUSTED)
        await self._start.without_share(pod, container)

    def stopped(self, container_id: str) -> None:
        """Release its GPU share; its mounts stay until it is removed."""
        self.records.ended(container_id)

    async def removed(self, container_id: str, key: str | None) -> None:
        await self.records.removed(container_id, key)

    def gets_gpu(self, pod: Pod, container_name: str) -> bool:
        """Whether the container must not run without our adjustment.

        A container of the pod without a share is adjusted too; without the adjustment it has no GPU
        either.
        """
        try:
            claim = self._claims.claim(pod, container_name, self._inventory.gpus)
        except Refused:
            return True
        return claim is not None and bool(claim.shares)
