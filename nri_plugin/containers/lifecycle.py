"""What the agent does when a runtime lists, creates or starts a container.

At a container's creation the agent enters its share in the ledger, makes its plan
(policy/plan.py), and creates its files. A failure releases the share. At its start the agent
compares the plan with what the container has, and appends the image's preloads to ours. Blocking
work runs in threads and a child, under deadlines. A timeout refuses a container with a share.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from gpuslice.contract import names
from gpuslice.kube.log_lines import Line
from nri_plugin.containers.parts import Parts
from nri_plugin.containers.records import Records
from nri_plugin.gpu.driver_limit import DriverLimits
from nri_plugin.host import bundle
from nri_plugin.host.node import Node
from nri_plugin.host.verifier import Started, Verifier
from nri_plugin.policy import checks, differences, nvidia
from nri_plugin.policy import plan as plans
from nri_plugin.policy.checks import Request
from nri_plugin.policy.injection import file_name
from nri_plugin.policy.model import Claim, Container, Pod
from nri_plugin.policy.notices import Notice
from nri_plugin.policy.plan import ContainerPlan
from nri_plugin.policy.recovery import Running
from nri_plugin.policy.refusals import INVENTORY_DEPENDENT, FilesError, Reason, Refused, refused
from nri_plugin.supervision import supervised
from nri_plugin.threads import Worker, in_time

_LOG: Final = logging.getLogger(__name__)

_COLLECT_EVERY_S: Final = 10.0


class Lifecycle:
    """Handles the events of containers. Its methods raise Refused to refuse a container."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._settings = parts.settings
        self.worker = Worker("files")
        self.node = Node(
            parts.settings, parts.inventory, parts.store, self.worker, parts.bound_pods
        )
        self.records = Records(parts, self.worker, self.node.modes)
        self.verifier = Verifier(
            parts.settings,
            parts.metrics,
            parts.notices,
            lambda path: self.node.driver_root.seen(path),
        )
        self.driver_limits = DriverLimits(
            parts.settings,
            parts.inventory,
            parts.metrics,
            parts.notices,
            parts.ledger.holds,
            lambda container_id: bundle.init(
                bundle.directory(parts.settings.containerd_state, container_id)
            ),
            lambda: self.node.limits.lacks,
        )
        self._verifying: asyncio.Task[None] | None = None
        self._collecting: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Cancel the background tasks, and start no more verifications."""
        for task in (self._collecting, self._verifying):
            if task is not None:
                task.cancel()
        self.records.close()
        self.verifier.stop()

    async def listed(self, running: Sequence[Running]) -> None:
        """Rebuild the records from the containers that the runtime lists, because the next creation
        depends on them. The containers are verified later, so that the runtime need not wait."""
        await self.records.take_over(running, self._parts.inventory.gpus)
        self.driver_limits.look_soon()
        if self._verifying is not None:
            self._verifying.cancel()
        self._verifying = asyncio.create_task(self._verify(running), name="verify what runs")
        if self._collecting is None:
            work = supervised("releases", self._collect)
            self._collecting = asyncio.create_task(work, name="releases")
        _LOG.info(Line("synchronized", containers=len(running)))

    async def _collect(self) -> None:
        """Remove releases that no container mounts any more, then pause. A deadline would not help,
        because a job that hangs blocks the worker even after its timeout."""
        await self.worker.run(
            partial(self.node.collect_releases, self._parts.files.mounted), deadline_s=None
        )
        await asyncio.sleep(_COLLECT_EVERY_S)

    async def _verify(self, running: Sequence[Running]) -> None:
        """Verify the running containers with a share, which earlier sessions started."""
        for one in running:
            if not one.mounts or one.key is None:
                continue
            container = Container(one.id, one.name, mounts=one.mounts)
            try:
                plan = await self._plan_in_place(container, one.key)
            except (TimeoutError, Refused) as error:  # not known whether the limit is in force
                problem = str(error) or "timeout"
                _warn("limit not checked", one.pod, container, problem=problem)
                continue
            self.verifier.begin(Started(one.pod, one.name, one.id, plan))

    async def settled(self) -> None:
        """Wait until all started verifications have ended."""
        if self._verifying is not None:
            await asyncio.wait([self._verifying])
        await self.verifier.settled()

    async def created(self, pod: Pod, container: Container) -> ContainerPlan | None:
        """Return the plan that the runtime must apply. None: the container is not changed."""
        claim = await self._claim_of(pod, container)
        if claim is not None and claim.shares:
            return await self._share(pod, container, claim)
        if claim is not None and container.cdi_names:
            job = partial(self._with_gpus_only, container)
            # If the CDI specs cannot be read in time, every CDI name counts as a GPU.
            with suppress(TimeoutError, Refused):
                container = await self.worker.run(job, self._settings.work_deadline_s)
        plan = plans.without_share(container, claim)
        if plan is not None:
            self.records.plans[container.id] = plan
            if plan.warning:
                self._notify(pod, container, names.EVENT_WITHOUT_GPU, f": {plan.warning}")
        elif claim is not None:
            text = "container without a grant keeps the GPU of another device plugin"
            _warn(text, pod, container, given=checks.given_gpu(container))
        return plan

    async def _claim_of(self, pod: Pod, container: Container) -> Claim | None:
        inventory, devices = self._parts.inventory, self._parts.claims.devices
        for other in devices.of_others(pod.uid, container.cdi_names):
            if devices.look_again is not None:
                await in_time("read the claim", self._within(devices.look_again(other)))
        claim = partial(self._parts.claims.claim, pod, container.name, container.cdi_names)
        try:
            return claim(inventory.gpus)
        except Refused as error:
            if error.refusal.reason not in INVENTORY_DEPENDENT:
                raise
        try:
            await in_time("query the GPUs", self._within(inventory.refresh()))
        except Refused:
            if inventory.problem is None:
                raise
        problem = inventory.problem or "; ".join(inventory.unnamed)
        try:
            return claim(inventory.seen)
        except Refused as error:
            if error.refusal.reason is Reason.GPU_UNKNOWN and problem:
                raise refused(Reason.GPUS_UNKNOWN, problem=problem) from error
            raise

    async def _within(self, work: Awaitable[None]) -> None:
        async with asyncio.timeout(self._settings.work_deadline_s):
            await work

    async def _share(self, pod: Pod, container: Container, claim: Claim) -> ContainerPlan:
        """Enter the share in the ledger. Then inspect the host and create the container's files in
        one job of the worker. A failure or cancellation of the job releases the share."""
        inventory = self._parts.inventory
        if self.node.selinux:
            raise refused(Reason.SELINUX, problem=self.node.selinux)
        key = plans.grant_key(pod, container, claim)
        self.records.take(pod, container, claim, key, inventory.gpus)
        inventory.query_if_older(self._settings.inventory_max_age_s)
        made = False
        try:
            sizes = dict(self._parts.contexts.sizes)
            making = partial(self._make, pod, container, claim, key, sizes)
            work = self.worker.run(making, self._settings.work_deadline_s)
            plan = await in_time("make the container's files", work)
            made = True
        except FilesError as error:
            raise refused(Reason.FILES_FAILED, problem=error) from error
        finally:
            if not made:
                self.records.not_made(container.id, key)
        self.records.plans[container.id] = plan
        if plan.cut:
            cut, what = ",".join(plan.cut), "driver capabilities cut"
            _LOG.info(Line(what, **pod.log_fields(container.name), cut=cut))
            text = (
                f": {what}: {cut}: they are not injected, because memory taken through them is not"
                " limited; the operator allows them by --driver-capabilities"
            )
            self._notify(pod, container, names.EVENT_CAPABILITIES_CUT, text, warning=False)
        return plan

    def _make(
        self,
        pod: Pod,
        container: Container,
        claim: Claim,
        key: str,
        context_bytes: Mapping[str, int],
    ) -> ContainerPlan:
        """Make the plan and its files. Runs in the worker. Raises Refused and FilesError."""
        self.node.check_assignments(claim.shares)
        handlers, container = self._settings.runtime_handlers, self._with_gpus_only(container)
        specs, paths = self.node.inspect_host()
        request = Request(pod, container, claim, key, specs, paths, handlers)
        plan = plans.with_share(request, self._settings.core_policy)
        self._parts.files.apply(plan, context_bytes)
        return plan

    def _with_gpus_only(self, container: Container) -> Container:
        """Remove the CDI names that inject no GPU. Runs in the worker."""
        cdi_names = container.cdi_names
        with_gpu = self.node.with_gpu(cdi_names)
        return replace(container, cdi_names=tuple(name for name in cdi_names if name in with_gpu))

    def starts(
        self, pod: Pod, container: Container, key: str | None
    ) -> Coroutine[Any, Any, None] | None:
        """Return the checks of a created container before it runs. None: it needs no check that
        waits. key: the key of the files that the container has mounted."""
        answered = self.records.starts(container.id)
        if not self._parts.claims.has_shares(pod):
            return None
        if key is not None:
            if answered is not None:
                _check_devices(container, answered)
            return self._start(pod, container, key)
        without = answered is not None and answered.key is None
        return self._start_without_share(pod, container, must_have=not without)

    def gets_gpu(self, pod: Pod, container: Container) -> bool:
        """Whether the container has a share, and must not run without our adjustment. A container
        without a share has no GPU even where our adjustment is missing."""
        gpus = self._parts.inventory.gpus
        try:
            claim = self._parts.claims.claim(pod, container.name, container.cdi_names, gpus)
        except Refused:
            return True
        return claim is not None and bool(claim.shares)

    async def _start(self, pod: Pod, container: Container, key: str) -> None:
        plan = await in_time("read the container's files", self._plan_in_place(container, key))
        if plan is None:
            raise refused(Reason.NOT_ADJUSTED)
        by_driver = await self.driver_limits.starts(container.id)
        inspection = self.verifier.examine(pod, container, plan)
        view = await in_time("inspect the container", inspection)
        if view.preloads:
            job = partial(self._parts.files.add_preloads, plan, view.preloads)
            work = self.worker.run(job, self._settings.work_deadline_s)
            try:
                await in_time("write the container's preload file", work)
            except FilesError as error:
                raise refused(Reason.FILES_FAILED, problem=error) from error
        if view.out_of_reach and not (by_driver and self._is_uncapped(container.id)):
            if self._settings.refuse_unenforceable:
                raise refused(Reason.LIMIT_NOT_ENFORCEABLE, problem=view.out_of_reach)
            limit = "limit of compute" if by_driver else "limit"
            problem = f"its {limit} may not reach it: {view.out_of_reach}"
            self._report_not_enforceable(pod, container, problem)
        self.verifier.begin(Started(pod, container.name, container.id, plan, view.waits_in))

    def _is_uncapped(self, container_id: str) -> bool:
        """Whether the container requested no compute, so that it has only limits of memory."""
        held = [h for h in self._parts.ledger.holds() if h.container_id == container_id]
        return not any(part.core_percent for hold in held for part in hold.parts.values())

    async def _start_without_share(self, pod: Pod, container: Container, must_have: bool) -> None:
        """Check a container that its pod's grant does not name. If it can undo the limits of the
        pod's other containers, write an event."""
        if must_have and self.gets_gpu(pod, container):
            raise refused(Reason.NOT_ADJUSTED)
        try:
            name = await self.verifier.strong_beside(pod, container)
        except (OSError, ValueError, RuntimeError) as error:  # a timeout, or no thread can start
            text = "container without a share not inspected"
            _warn(text, pod, container, problem=repr(error))
            return
        if name:
            problem = (
                f"with capability {name} and a shared process namespace it can undo the limits of"
                " the pod's other containers"
            )
            self._report_not_enforceable(pod, container, problem)

    def _report_not_enforceable(self, pod: Pod, container: Container, problem: str) -> None:
        self._parts.metrics.not_enforceable.inc()
        reason = names.EVENT_LIMIT_NOT_ENFORCEABLE
        self._notify(pod, container, reason, f" starts, but {problem}")
        _warn(reason, pod, container, problem=problem)

    def _notify(
        self, pod: Pod, container: Container, reason: str, text: str, warning: bool = True
    ) -> None:
        text = f'container "{container.name}"{text}'
        self._parts.notices.add(Notice(pod, container.name, reason, text, warning=warning))

    async def _plan_in_place(self, container: Container, key: str) -> ContainerPlan | None:
        """Return the container's stored plan. None: no plan is stored, or the container lacks one
        of the plan's mounts. Raises TimeoutError."""
        job = partial(self._parts.files.plan, key, file_name(container, key))
        plan = await self.worker.run(job, self._settings.work_deadline_s)
        return plan if plan and differences.has_mounts(plan, container.mounts) else None


def _warn(text: str, pod: Pod, container: Container, **fields: str) -> None:
    _LOG.warning(Line(text, **pod.log_fields(container.name, container.id), **fields))


def _check_devices(container: Container, plan: ContainerPlan) -> None:
    """Refuse a container with a GPU of another NRI plugin. A runtime that does not support
    validation reports such a GPU only at the container's start."""
    ours = {device.path for device in plan.devices}
    for device in container.devices:
        if nvidia.is_node(device.path, device.major) and device.path not in ours:
            raise refused(Reason.GPU_FOREIGN, plugin="unknown", what=f"device {device.path}")
