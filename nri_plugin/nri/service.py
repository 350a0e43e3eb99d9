"""The request handler of the node agent: answers NRI's requests according to the policy.

The service passes NRI's requests to containers.Lifecycle, and converts the returned plans to
replies. It also validates the adjustments of all NRI plugins. A request about a pod without a claim
is answered at once, even if the node has a problem.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from gpuslice.contract import names
from nri_plugin.containers.lifecycle import Lifecycle
from nri_plugin.containers.parts import Parts
from nri_plugin.host import discovery, nvidia_runtime, selinux
from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.nri import translate
from nri_plugin.nri.answers import Answer, Reply
from nri_plugin.policy import bystanders, differences, merged, nvidia
from nri_plugin.policy.bystanders import Gpus
from nri_plugin.policy.merged import Merged
from nri_plugin.policy.model import Container, Pod
from nri_plugin.policy.notices import Notice
from nri_plugin.policy.recovery import Running
from nri_plugin.policy.refusals import Reason, refused
from nri_plugin.protocol import session_events
from nri_plugin.threads import in_time

_RECHECK_S: Final = 60.0


class Service:
    """The handler of the runtime's requests. One Service serves all consecutive sessions."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._settings = settings = parts.settings
        self._run_dir = str(settings.run_dir)
        # The kubelet's --root-dir, and the directory that always has its device plugins' sockets.
        kubelet = settings.view.on_host(settings.kubelet_dir)
        self._kubelet_dirs = {str(kubelet), str(discovery.DEVICE_PLUGINS.parent)}
        self._recheck_s = 0.0
        self.lifecycle = Lifecycle(parts)
        self.node, self.records = self.lifecycle.node, self.lifecycle.records
        self._worker = self.lifecycle.worker

    def handle(self, request: session_events.Request) -> Answer[Reply]:
        match request:
            case session_events.CreateContainer(pod=pod, container=container):
                return self._create(pod, container)
            case session_events.StartContainer(pod=pod, container=container):
                return self._start(pod, container)
            case session_events.StopContainer(container=container):
                self.records.ledger.drop(container.id)  # the container's removal removes its files
            case session_events.RemoveContainer(container=container):
                key = translate.key_of(container, self._run_dir)
                return self.records.removed(container.id, key)
            case session_events.Validate(request=validation):
                return self._validate(validation)
            case session_events.Synchronize(pods=pods, containers=containers):
                return self._synchronize(pods, containers)
        return None

    async def _synchronize(
        self, pods: Sequence[nri.PodSandbox], containers: Sequence[nri.Container]
    ) -> None:
        self._recheck_s = 0.0  # a restarted containerd may have another default runtime
        plain = [pod.id for pod in pods if not pod.runtime_handler]
        with suppress(TimeoutError):
            job = partial(self.node.note_default_runtime, plain)
            await self._worker.run(job, self._settings.work_deadline_s)
        by_sandbox = {pod.id: translate.pod(pod) for pod in pods}
        running = [self._running(one, by_sandbox.get(one.pod_sandbox_id)) for one in containers]
        await self.lifecycle.listed(running)
        # The worker finishes this job before it makes the files of the next container.
        self._worker.post(partial(self._note_labels, plain))

    def _running(self, message: nri.Container, pod: Pod | None) -> Running:
        one = translate.running(message, pod, self._run_dir)
        gpus = self._from_nvidias_runtime(message.pod_sandbox_id, message, lambda: one.pod)
        return replace(one, missed=gpus is Gpus.OVERRIDDEN)

    def _check_new_sandbox(self, pod: nri.PodSandbox) -> None:
        """Check once a minute whether containerd's default runtime has changed, and whether SELinux
        now prevents containers from reading their files."""
        now_s = asyncio.get_running_loop().time()
        if not pod.runtime_handler and now_s >= self._recheck_s:
            self._recheck_s = now_s + _RECHECK_S
            self._worker.post(partial(self.node.note_default_runtime, [pod.id]))
            self._worker.post(partial(self._note_labels, [pod.id]))

    def _note_labels(self, sandbox_ids: Sequence[str]) -> None:
        """Record the problem that SELinux makes for containers, if any. Runs in the worker."""
        state, host = self._settings.containerd_state, self._settings.host_root
        policy = selinux.Policy(host)
        problem = selinux.problem(state, sandbox_ids, self._parts.files.label, policy)
        if problem is not None:
            self.node.selinux = problem

    def _create(self, pod: nri.PodSandbox, container: nri.Container) -> Answer[Reply]:
        self._check_new_sandbox(pod)
        if not self._may_claim(pod, container):
            return self._without_claim(pod, container)
        return self._created(translate.pod(pod), translate.container(container))

    def _may_claim(self, pod: nri.PodSandbox, container: nri.Container) -> bool:
        return self._parts.claims.may_claim(pod, translate.cdi_names(container))

    async def _created(self, pod: Pod, container: Container) -> Reply:
        plan = await self.lifecycle.created(pod, container)
        return None if plan is None else translate.reply(plan)

    def _without_claim(self, pod: nri.PodSandbox, message: nri.Container) -> Reply:
        """Hide the GPUs that NVIDIA's runtime would give, or count a container that keeps them."""
        gpus = self._from_nvidias_runtime(pod.id, message, lambda: translate.pod(pod))
        if gpus is Gpus.UNLIMITED:
            self._parts.metrics.unlimited.labels("nvidia_runtime").inc()
        if gpus is not Gpus.OVERRIDDEN:
            return None
        text = f'container "{message.name}": {bystanders.WARNING}'
        reason, regarded = names.EVENT_WITHOUT_GPU, translate.pod(pod)
        self._parts.notices.add(Notice(regarded, message.name, reason, text, warning=False))
        return translate.reply(bystanders.OVERRIDE)

    def _from_nvidias_runtime(
        self, sandbox_id: str, message: nri.Container, make_pod: Callable[[], Pod]
    ) -> Gpus:
        """Return which GPUs NVIDIA's runtime gives the container. Nearly all containers request
        none, and for these the function is fast."""
        toolkit, settings = self.node.toolkit, self._settings
        asks = nvidia.asks_for_gpus(message.env) or (
            toolkit.of_mounts and any(nvidia.is_request(m.destination) for m in message.mounts)
        )
        if not (asks and nvidia_runtime.runs(settings.containerd_state, sandbox_id)):
            return Gpus.NONE
        here = bystanders.Situation(
            toolkit, self.node.is_ours, self.node.modes.pods, self._kubelet_dirs
        )
        return bystanders.gpus(make_pod(), translate.container(message), here)

    def _start(self, pod: nri.PodSandbox, container: nri.Container) -> Answer[None]:
        if not self._may_claim(pod, container):
            return None
        key = translate.key_of(container, self._run_dir)
        return self.lifecycle.starts(translate.pod(pod), translate.container(container), key)

    def _validate(self, request: nri.ValidateContainerAdjustmentRequest) -> Answer[None]:
        if not self._may_claim(request.pod, request.container):
            self._count_foreign(request)
            return None
        plan = self.records.plans.get(request.container.id)
        if plan is None and self.lifecycle.gets_gpu(
            translate.pod(request.pod), translate.container(request.container)
        ):
            raise refused(Reason.NOT_ADJUSTED)
        if plan is None or plan.key is None:
            self._count_foreign(request)
            return None
        if translate.is_unchanged(request, plan):
            return None
        adjusted = translate.merged(request, self._settings.plugin)
        for what, problem in differences.in_adjustment(plan, adjusted):
            raise refused(Reason.ADJUSTMENT_LOST, what=f"{what} {problem}")
        cdi_names = merged.host_names(adjusted)
        if cdi_names is None:
            self._check_gpus(adjusted, merged.Host())
            return None
        return self._check_plugins(adjusted, cdi_names)

    def _count_foreign(self, request: nri.ValidateContainerAdjustmentRequest) -> None:
        """Count a container without a share that gets another plugin's GPU. This is allowed."""
        adjust = request.adjust
        if not (adjust.linux.devices or adjust.cdi_devices or adjust.mounts or adjust.env):
            return
        adjusted = translate.merged(request, self._settings.plugin)
        host = merged.Host(frozenset(filter(nvidia.is_of_vendor, adjusted.cdi_names)))
        if merged.foreign_gpu(adjusted, host) is not None:
            self._parts.metrics.unlimited.labels("nri_plugin").inc()

    async def _check_plugins(self, adjusted: Merged, cdi_names: Sequence[str]) -> None:
        """Refuse the container if the host's spec of another plugin's CDI name injects a GPU."""
        host = await in_time(
            "resolve the CDI names of other plugins", self.node.resolve_cdi_names(cdi_names)
        )
        self._check_gpus(adjusted, host)

    def _check_gpus(self, adjusted: Merged, host: merged.Host) -> None:
        gpu = merged.foreign_gpu(adjusted, host)
        if gpu is not None:
            plugin = gpu.plugin or "unknown"
            raise refused(Reason.GPU_FOREIGN, plugin=plugin, what=gpu.what)

    def granted(self, container_id: str) -> Mapping[str, str]:
        """Return what the agent's plan gives the container, as fields of the log."""
        plan = self.records.plans.get(container_id)
        return {} if plan is None else plan.log_fields
