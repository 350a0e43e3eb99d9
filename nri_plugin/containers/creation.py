"""Creates a container: delivers the adjustment with the share, after creating its files.

Each step runs in the worker or a child, under a deadline. The share is entered in the ledger before
the files are created, and released if that fails.
"""

from __future__ import annotations

import asyncio
import logging
import posixpath
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, Generic, TypeAlias, TypeVar

from contract import names
from kube.log_lines import Line
from nri_plugin.containers.records import Answered, ContainerRecords
from nri_plugin.gpu.contexts import Contexts
from nri_plugin.gpu.inventory import Inventory
from nri_plugin.host.files import RunDirectory
from nri_plugin.host.node import Node
from nri_plugin.policy import pod_policy, required_mounts
from nri_plugin.policy.bound_pods import BoundPods
from nri_plugin.policy.model import Adjustment, Claim, Container, Floor, Pod, Untouched
from nri_plugin.policy.notices import Notice, Notices
from nri_plugin.policy.pod_policy import ClaimSource
from nri_plugin.policy.refusals import FilesError, Reason, Refused, refused
from nri_plugin.settings import Settings
from nri_plugin.threads import Worker, in_time

_LOG: Final = logging.getLogger(__name__)

_T = TypeVar("_T")
Delivery: TypeAlias = Callable[[Adjustment], _T]
"""Converts an adjustment to what the runtime applies; runs in the worker where there is a share."""

_INVENTORY_DEPENDENT: Final = frozenset(
    {Reason.GPU_UNKNOWN, Reason.GPU_MISMATCH, Reason.MEMORY_OUT_OF_RANGE}
)
"""Refusals that a new inventory may change: a GPU was replaced, or the driver loaded late."""


class ContainerCreation(Generic[_T]):
    """worker: the one that does all work on `files`. All methods raise Refused."""

    def __init__(
        self,
        settings: Settings,
        node: Node,
        inventory: Inventory,
        contexts: Contexts,
        containers: ContainerRecords[_T],
        files: RunDirectory,
        worker: Worker,
        bound_pods: BoundPods,
        notices: Notices,
        claims: ClaimSource,
        deliver: Delivery[_T],
    ) -> None:
        self._claims = claims
        self._deliver = deliver
        self._bound_pods = bound_pods
        self._notices = notices
        self._settings = settings
        self._node = node
        self._inventory = inventory
        self._contexts = contexts
        self._containers = containers
        self._files = files
        self._worker = worker

    async def create(self, pod: Pod, container: Container) -> _T | None:
        """Return the container's adjustment; None: no adjustment is needed."""
        claim = await self._claim_of(pod, container)
        if claim is None:
            return None
        if claim.shares:
            return await self._share(pod, container, claim)
        if container.cdi_names:
            job = partial(self._with_gpus_only, container)
            # If the specs cannot be read in time, each name may be a GPU of another plugin.
            with suppress(TimeoutError, Refused):
                container = await self._worker.run(job, self._settings.work_deadline_s)
        decision = pod_policy.without_share(container, claim)
        if isinstance(decision, Untouched):
            if decision.given:
                _log_kept_gpu(pod, container, decision.given)
            return None
        self._warn(pod, container, decision.warning)
        answer = Answered(decision, self._deliver(decision))
        self._containers.answered(container.id, answer)
        return answer.sent

    async def _claim_of(self, pod: Pod, container: Container) -> Claim | None:
        try:
            return self._claims.claim(pod, container.name, self._inventory.gpus)
        except Refused as error:
            if error.refusal.reason not in _INVENTORY_DEPENDENT:
                raise
        try:
            await in_time("query the GPUs", self._refreshed())
        except Refused:
            if self._inventory.problem is None:
                raise
        problem = self._inventory.problem or "; ".join(self._inventory.unnamed)
        try:
            return self._claims.claim(pod, container.name, self._inventory.seen)
        except Refused as error:
            if error.refusal.reason is Reason.GPU_UNKNOWN and problem:
                raise refused(Reason.GPUS_UNKNOWN, problem=problem) from error
            raise

    async def _share(self, pod: Pod, container: Container, claim: Claim) -> _T:
        """Enter the share in the ledger, then inspect the host and create the container's files, in
        one job. Releases the share if that fails or is cancelled."""
        if self._node.selinux:
            raise refused(Reason.SELINUX, problem=self._node.selinux)
        key = pod_policy.grant_key(pod, container, claim.shared)
        self._containers.take(pod, container, claim, key, self._inventory.gpus)
        self._inventory.query_if_older(self._settings.inventory_max_age_s)
        made = False
        try:
            making = partial(self._make, pod, container, claim, key, dict(self._contexts.sizes))
            work = self._worker.run(making, self._settings.work_deadline_s)
            answer = await in_time("make the container's files", work)
            made = True
        except FilesError as error:
            raise refused(Reason.FILES_FAILED, problem=error) from error
        finally:
            if not made:
                self._containers.not_made(container.id, key)
        self._containers.answered(container.id, answer)
        self._report_cut_capabilities(pod, container, answer.wanted.cut)
        return answer.sent

    def _make(
        self,
        pod: Pod,
        container: Container,
        claim: Claim,
        key: str,
        context_bytes: Mapping[str, int],
    ) -> Answered[_T]:
        """Runs in the worker. Raises Refused and FilesError."""
        self._node.check_assignments(claim.shares)
        settings, container = self._settings, self._with_gpus_only(container)
        specs, paths = self._node.inspect_host_now()
        wanted = pod_policy.with_share(pod, container, claim, specs, paths, settings.rules)
        floor = Floor(context_bytes, settings.code_bytes, settings.managed_free)
        preloads = _own_preloads(wanted) if wanted.shared else ()
        self._files.prepare(key, wanted.shares, wanted.shared, floor, preloads)
        directory, store_dir = f"{settings.run_dir}/{key}", str(settings.store_dir)
        required = required_mounts.in_place(wanted.mounts, directory, store_dir)
        if required is not None:
            self._files.record(key, container.name if wanted.shared else "", required)
        return Answered(wanted, self._deliver(wanted))

    def _with_gpus_only(self, container: Container) -> Container:
        """Leave out CDI devices that inject no GPU. Runs in the worker."""
        cdi_names = container.cdi_names
        found = self._node.with_gpu(cdi_names)
        return replace(container, cdi_names=tuple(name for name in cdi_names if name in found))

    def _warn(self, pod: Pod, container: Container, warning: str) -> None:
        if warning:
            text = f'container "{container.name}": {warning}'
            self._notices.add(Notice(pod, container.name, names.EVENT_WITHOUT_GPU, text))

    def _report_cut_capabilities(self, pod: Pod, container: Container, cut: Sequence[str]) -> None:
        if not cut:
            return
        listed, what = ",".join(cut), "driver capabilities cut"
        _LOG.info(Line(what, **pod.log_fields, container=container.name, cut=listed))
        text = (
            f'container "{container.name}": {what}: {listed}: they are not injected, because memory'
            " taken through them is not limited; the operator allows them by --driver-capabilities"
        )
        reason = names.EVENT_CAPABILITIES_CUT
        self._notices.add(Notice(pod, container.name, reason, text, warning=False))

    async def _refreshed(self) -> None:
        async with asyncio.timeout(self._settings.work_deadline_s):
            await self._inventory.refresh()


def _own_preloads(wanted: Adjustment) -> Sequence[str]:
    """Return the container's own preload lists, which it has if it shares its grant."""
    return [
        posixpath.basename(mount.source)
        for mount in wanted.mounts
        if mount.destination in names.CONTAINER_PRELOADS
    ]


def _log_kept_gpu(pod: Pod, container: Container, given: str) -> None:
    _LOG.warning(
        Line(
            "container without a grant keeps the GPU of another device plugin",
            **pod.log_fields,
            container=container.name,
            container_id=container.id,
            given=given,
        )
    )
