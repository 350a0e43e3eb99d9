"""The request handler of the node agent: answers NRI's requests according to the policy.

Converts NRI's requests to events of containers.Lifecycle, and its adjustments to replies. Validates
all plugins' adjustments, which only NRI offers. A pod without a claim is answered at once, whatever
the state of the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from contract import names
from nri_plugin.containers.lifecycle import Lifecycle
from nri_plugin.gpu.contexts import Contexts
from nri_plugin.gpu.inventory import Inventory
from nri_plugin.host import discovery, nvidia_runtime, selinux
from nri_plugin.host.files import RunDirectory
from nri_plugin.host.store import Store
from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.metrics import Metrics
from nri_plugin.nri import translate
from nri_plugin.nri.handler import Answer
from nri_plugin.policy import annotation_claims, bystanders, nvidia, verdict
from nri_plugin.policy.bound_pods import BoundPods
from nri_plugin.policy.bystanders import Gpus
from nri_plugin.policy.ledger import Hold
from nri_plugin.policy.model import Pod
from nri_plugin.policy.notices import Notice, Notices
from nri_plugin.policy.pod_policy import ClaimSource
from nri_plugin.policy.recovery import Running
from nri_plugin.policy.refusals import Reason, refused
from nri_plugin.settings import Settings
from nri_plugin.threads import in_time

_RECHECK_S: Final = 60.0


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
        claims: ClaimSource = annotation_claims,
    ) -> None:
        self._settings = settings
        self._metrics = metrics or Metrics()
        self._notices = notices or Notices()
        self._run_dir = str(settings.run_dir)
        self._files = files
        # Its own path, and the one under which it looks for device plugins in any case.
        kubelet = settings.view.on_host(settings.kubelet_dir)
        self._kubelet_dirs = {str(kubelet), str(discovery.DEVICE_PLUGINS.parent)}
        self._recheck_s = 0.0
        self._claims = claims
        self._lifecycle = Lifecycle(
            settings,
            inventory,
            contexts,
            files,
            store,
            self._metrics,
            bound_pods or BoundPods(),
            self._notices,
            claims,
            translate.reply,
        )
        self.node, self._containers = self._lifecycle.node, self._lifecycle.records
        self._worker = self._lifecycle.worker

    def close(self) -> None:
        """Start no more work."""
        self._lifecycle.close()

    async def synchronize(
        self, pods: Sequence[nri.PodSandbox], containers: Sequence[nri.Container]
    ) -> None:
        self._recheck_s = 0.0  # a restarted containerd may have another default
        plain = [pod.id for pod in pods if not pod.runtime_handler]
        with suppress(TimeoutError):
            job = partial(self.node.note_default_runtime, plain)
            await self._worker.run(job, self._settings.work_deadline_s)
        by_sandbox = {pod.id: translate.pod(pod) for pod in pods}
        running = [self._running(one, by_sandbox.get(one.pod_sandbox_id)) for one in containers]
        await self._lifecycle.listed(running)
        # The worker does this before the files of the next container.
        self._worker.post(partial(self._note_labels, plain))

    def _running(self, message: nri.Container, of: Pod | None) -> Running:
        one = translate.running(message, of, self._run_dir)
        found = self._from_nvidias_runtime(message.pod_sandbox_id, message, lambda: one.pod)
        return replace(one, missed=found is Gpus.OVERRIDDEN)

    def _check_new_sandbox(self, pod: nri.PodSandbox) -> None:
        """Once a minute: containerd's default runtime may have become another one, or SELinux
        enforcing."""
        now_s = asyncio.get_running_loop().time()
        if not pod.runtime_handler and now_s >= self._recheck_s:
            self._recheck_s = now_s + _RECHECK_S
            self._worker.post(partial(self.node.note_default_runtime, [pod.id]))
            self._worker.post(partial(self._note_labels, [pod.id]))

    def _note_labels(self, sandbox_ids: Sequence[str]) -> None:
        """Runs in the worker."""
        state, host = self._settings.containerd_state, self._settings.host_root
        policy = selinux.Policy(host)
        problem = selinux.problem(state, sandbox_ids, self._files.label, policy)
        if problem is not None:
            self.node.selinux = problem

    def create_container(
        self, pod: nri.PodSandbox, container: nri.Container
    ) -> Answer[nri.CreateContainerResponse | None]:
        self._check_new_sandbox(pod)
        if not self._claims.may_claim(pod.labels, pod.annotations):
            return self._without_claim(pod, container)
        return self._lifecycle.created(translate.pod(pod), translate.container(container))

    def _without_claim(
        self, pod: nri.PodSandbox, message: nri.Container
    ) -> nri.CreateContainerResponse | None:
        """Keep GPUs of NVIDIA's runtime from the container, or count that it gets them."""
        found = self._from_nvidias_runtime(pod.id, message, lambda: translate.pod(pod))
        if found is Gpus.UNLIMITED:
            self._metrics.unlimited.labels("nvidia_runtime").inc()
        if found is not Gpus.OVERRIDDEN:
            return None
        of, text = translate.pod(pod), f'container "{message.name}": {bystanders.WARNING}'
        self._notices.add(Notice(of, message.name, names.EVENT_WITHOUT_GPU, text, warning=False))
        return translate.reply(bystanders.OVERRIDE)

    def _from_nvidias_runtime(
        self, sandbox_id: str, message: nri.Container, of: Callable[[], Pod]
    ) -> Gpus:
        """Return what NVIDIA's runtime gives the container. Nearly all request nothing."""
        toolkit, settings = self.node.toolkit, self._settings
        asks = nvidia.asks_for_gpus(message.env) or (
            toolkit.of_mounts and any(nvidia.is_request(m.destination) for m in message.mounts)
        )
        if not (asks and nvidia_runtime.runs(settings.containerd_state, sandbox_id)):
            return Gpus.NONE
        here = bystanders.Situation(
            toolkit, self.node.is_ours, self.node.modes.pods, self._kubelet_dirs
        )
        return bystanders.gpus(of(), translate.container(message), here)

    def start_container(self, pod: nri.PodSandbox, container: nri.Container) -> Answer[None]:
        if not self._claims.may_claim(pod.labels, pod.annotations):
            return None
        key = translate.key_of(container, self._run_dir)
        return self._lifecycle.starts(translate.pod(pod), translate.container(container), key)

    def stop_container(self, pod: nri.PodSandbox, container: nri.Container) -> None:
        self._lifecycle.stopped(container.id)

    async def remove_container(self, pod: nri.PodSandbox, container: nri.Container) -> None:
        await self._lifecycle.removed(container.id, translate.key_of(container, self._run_dir))

    def validate(self, request: nri.ValidateContainerAdjustmentRequest) -> Answer[None]:
        if not self._claims.may_claim(request.pod.labels, request.pod.annotations):
            self._count_foreign(request)
            return None
        answer = self._containers.answer_of(request.container.id)
        if answer is None and self._lifecycle.gets_gpu(
            translate.pod(request.pod), request.container.name
        ):
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
        cdi_names = verdict.host_names(merged, me)
        if cdi_names is None:
            self._check_gpus(merged, verdict.Host())
            return None
        return self._check_plugins(merged, cdi_names)

    def _count_foreign(self, request: nri.ValidateContainerAdjustmentRequest) -> None:
        """Count a GPU that another plugin gives to a container without a share; it is allowed."""
        adjust = request.adjust
        if not (adjust.linux.devices or adjust.cdi_devices or adjust.mounts or adjust.env):
            return
        merged = translate.merged(request)
        host = verdict.Host(frozenset(filter(nvidia.is_of_vendor, merged.cdi_names)))
        if verdict.foreign_gpu(merged, self._settings.plugin, host) is not None:
            self._metrics.unlimited.labels("nri_plugin").inc()

    async def _check_plugins(self, merged: verdict.Merged, cdi_names: Sequence[str]) -> None:
        """Resolve other plugins' CDI names on the host, then check for GPUs."""
        host = await in_time(
            "resolve the CDI names of other plugins", self.node.resolve_cdi_names(cdi_names)
        )
        self._check_gpus(merged, host)

    def _check_gpus(self, merged: verdict.Merged, host: verdict.Host) -> None:
        gpu = verdict.foreign_gpu(merged, self._settings.plugin, host)
        if gpu is not None:
            plugin = gpu.plugin or "unknown"
            raise refused(Reason.GPU_FOREIGN, plugin=plugin, what=gpu.what)

    @property
    def holds(self) -> Sequence[Hold]:
        """Return what running containers hold."""
        return self._containers.ledger.holds()

    def granted(self, container_id: str) -> Mapping[str, str]:
        """Return what the answer to its creation gave the container, as fields of the log."""
        answer = self._containers.answer_of(container_id)
        return {} if answer is None else answer.wanted.log_fields

    @property
    def knows_holds(self) -> bool:
        """Return whether `holds` has what runs; not before the runtime has listed it."""
        return self._containers.is_complete
