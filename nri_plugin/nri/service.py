"""The request handler of the node agent: answers NRI's requests according to the policy.

containers.py has the containers' state, node.py the host's; create_container.py handles
CreateContainer, start_container.py StartContainer. The event loop never blocks on a disk, a driver
or a tenant: that work runs in threads and a child, under deadlines. On a timeout a container with a
share is refused. A pod without a grant is answered at once, whatever the state of the node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from kube.log_lines import Line
from nri_plugin.gpu.contexts import Contexts
from nri_plugin.gpu.inventory import Inventory
from nri_plugin.host import unprotected
from nri_plugin.host.files import RunDirectory
from nri_plugin.host.node import Node
from nri_plugin.host.store import Store
from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.metrics import Metrics
from nri_plugin.nri import translate
from nri_plugin.nri.containers import ContainerRecords
from nri_plugin.nri.create_container import ContainerCreation
from nri_plugin.nri.handler import Answer
from nri_plugin.nri.start_container import ContainerStart
from nri_plugin.policy import gpu_devices, pod_policy, verdict
from nri_plugin.policy.bound_pods import BoundPods
from nri_plugin.policy.ledger import Hold
from nri_plugin.policy.model import Pod
from nri_plugin.policy.notices import Notices
from nri_plugin.policy.refusals import Reason, Refused, refused
from nri_plugin.settings import Settings
from nri_plugin.threads import Worker, in_time

_LOG: Final = logging.getLogger(__name__)

_RECHECK_S: Final = 60.0
_COLLECT_EVERY_S: Final = 10.0


class Service:
    """The handler of one runtime's requests; used for consecutive connections."""

    def __init__(
        self,
        settings: Settings,
        inventory: Inventory,
        contexts: Contexts,
        files: RunDirectory,
        store: Store,
        metrics: Metrics | None = None,
        bound_pods: BoundPods | None = None,
        notices: Notices | None = None,
    ) -> None:
        bound_pods = bound_pods or BoundPods()
        self._settings = settings
        self._metrics = metrics or Metrics()
        self._run_dir = str(settings.run_dir)
        self._files = files
        self._collecting: asyncio.TimerHandle | None = None
        self._recheck_s = 0.0
        self._inventory = inventory
        self._worker = Worker("files")
        self.node = Node(settings, inventory, store, self._worker)
        self._containers = ContainerRecords(
            settings, files, self._worker, self._metrics, bound_pods, self.node.modes
        )
        notices = notices or Notices()
        self._start = ContainerStart(settings, files, self._worker, self._metrics, notices)
        self._creation = ContainerCreation(
            settings,
            self.node,
            inventory,
            contexts,
            self._containers,
            files,
            self._worker,
            bound_pods,
            notices,
        )

    def close(self) -> None:
        """Start no more work."""
        if self._collecting is not None:
            self._collecting.cancel()
        self._containers.sweeper.stop()
        self._start.close()

    async def synchronize(
        self, pods: Sequence[nri.PodSandbox], containers: Sequence[nri.Container]
    ) -> None:
        by_sandbox = {pod.id: translate.pod(pod) for pod in pods}
        running = [
            translate.running(one, by_sandbox.get(one.pod_sandbox_id), self._run_dir)
            for one in containers
        ]
        await self._containers.take_over(running, self._inventory.gpus)
        self._recheck_s = 0.0  # a restarted containerd may have another default
        await self._check_default_runtime(pods)
        for reported, one in zip(containers, running, strict=True):
            if reported.state == nri.CONTAINER_RUNNING and one.key is not None:
                await self._start.running(one.pod, reported, one.key)
        if self._collecting is None:
            self._collect()
        _LOG.info(Line("synchronized", containers=len(containers)))

    def _collect(self) -> None:
        """Regularly: a container was removed, or the distributor changed the current release."""
        self.node.collect_releases(self._files.mounted)
        loop = asyncio.get_running_loop()
        self._collecting = loop.call_later(_COLLECT_EVERY_S, self._collect)

    async def _check_default_runtime(self, pods: Sequence[nri.PodSandbox]) -> None:
        plain = [pod.id for pod in pods if not pod.runtime_handler]
        with suppress(TimeoutError):
            job = partial(self._note_default_runtime, plain)
            await self._worker.run(job, self._settings.work_deadline_s)

    def _check_new_sandbox(self, pod: nri.PodSandbox) -> None:
        """Once a minute: containerd's default runtime may have become another one."""
        now_s = asyncio.get_running_loop().time()
        if not pod.runtime_handler and now_s >= self._recheck_s:
            self._recheck_s = now_s + _RECHECK_S
            self._worker.post(partial(self._note_default_runtime, [pod.id]))

    def _note_default_runtime(self, sandbox_ids: Sequence[str]) -> None:
        """Runs in the worker."""
        problem = unprotected.problem(self._settings.containerd_state, sandbox_ids)
        if problem is not None:
            self.node.unprotected = problem

    def create_container(
        self, pod: nri.PodSandbox, container: nri.Container
    ) -> Answer[nri.CreateContainerResponse | None]:
        self._check_new_sandbox(pod)
        if not pod_policy.requests_gpu(pod.labels, pod.annotations):
            by_default = bool(self.node.unprotected)
            if unprotected.gets_all(pod.runtime_handler, container.env, by_default):
                self._metrics.unlimited.labels("nvidia_runtime").inc()
            return None
        return self._creation.create(translate.pod(pod), translate.container(container))

    def start_container(self, pod: nri.PodSandbox, container: nri.Container) -> Answer[None]:
        if not pod_policy.requests_gpu(pod.labels, pod.annotations):
            return None
        of = translate.pod(pod)
        if not pod_policy.has_shares(of):
            self._containers.starts(container.id)
            return None
        return self._check_start(of, container)

    def stop_container(self, pod: nri.PodSandbox, container: nri.Container) -> None:
        """Release its GPU share; its mounts stay until it is removed."""
        self._containers.ended(container.id)

    async def remove_container(self, pod: nri.PodSandbox, container: nri.Container) -> None:
        await self._containers.removed(container.id, translate.key_of(container, self._run_dir))

    def validate(self, request: nri.ValidateContainerAdjustmentRequest) -> Answer[None]:
        if not pod_policy.requests_gpu(request.pod.labels, request.pod.annotations):
            self._count_foreign(request)
            return None
        answer = self._containers.answer_of(request.container.id)
        if answer is None and self._gets_gpu(translate.pod(request.pod), request.container.name):
            raise refused(Reason.NOT_ADJUSTED)
        if answer is None or answer.wanted.key is None:
            self._count_foreign(request)
            return None
        if translate.is_unchanged(request, answer.sent):
            return None
        me = self._settings.plugin
        merged = translate.merged(request)
        lost = verdict.lost(answer.wanted, merged, me)
        if lost is not None:
            raise refused(Reason.ADJUSTMENT_LOST, what=lost)
        asked = verdict.host_names(merged, me)
        if asked is None:
            self._check_gpus(merged, verdict.Host())
            return None
        return self._check_plugins(merged, asked)

    async def _check_start(self, pod: Pod, container: nri.Container) -> None:
        answer = self._containers.starts(container.id)
        key = translate.key_of(container, self._run_dir)
        if key is not None:
            await self._start.with_share(pod, container, key)
            return
        without = answer is not None and answer.wanted.key is None
        if not without and self._gets_gpu(pod, container.name):
            raise refused(Reason.NOT_ADJUSTED)
        await self._start.without_share(pod, container)

    def _count_foreign(self, request: nri.ValidateContainerAdjustmentRequest) -> None:
        """Count a GPU that another plugin gives to a container without a share; it is allowed."""
        adjust = request.adjust
        if not (adjust.linux.devices or adjust.cdi_devices or adjust.mounts or adjust.env):
            return
        merged = translate.merged(request)
        host = verdict.Host(frozenset(filter(gpu_devices.is_of_vendor, merged.cdi_names)))
        if verdict.foreign_gpu(merged, self._settings.plugin, host) is not None:
            self._metrics.unlimited.labels("nri_plugin").inc()

    async def _check_plugins(self, merged: verdict.Merged, cdi_names: Sequence[str]) -> None:
        """Resolve other plugins' CDI names on the host, then check for GPUs."""
        host = await in_time("resolve the CDI names of other plugins", self.node.brought(cdi_names))
        self._check_gpus(merged, host)

    def _check_gpus(self, merged: verdict.Merged, host: verdict.Host) -> None:
        gpu = verdict.foreign_gpu(merged, self._settings.plugin, host)
        if gpu is not None:
            plugin = gpu.plugin or "unknown"
            raise refused(Reason.GPU_FOREIGN, plugin=plugin, what=gpu.what)

    def _gets_gpu(self, pod: Pod, container_name: str) -> bool:
        """Whether the container must not run without our adjustment.

        A container of the pod without a share is adjusted too; without the adjustment it has no GPU
        either.
        """
        try:
            granted = pod_policy.grant_of(pod, container_name, self._inventory.gpus)
        except Refused:
            return True
        return granted is not None and bool(granted.shares)

    @property
    def holds(self) -> Sequence[Hold]:
        """Return what running containers hold."""
        return self._containers.ledger.holds()
