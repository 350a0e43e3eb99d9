"""Gives whole GPUs to pods, as the node's device plugin for nvidia.com/gpu.

This module keeps the plugin registered, its list of GPUs current, and the holds equal to the
kubelet's assignments. It runs on the event loop, where shares are entered in the ledger. Therefore
a share and an allocation of the same GPU cannot both succeed. gpu_modes.py has the rules.

The kubelet's PodResources API omits init containers. After a restart of the kubelet this API lists
no pod until the API server has answered the kubelet. The kubelet's record on disk has all of these
pods, but also pods that no longer exist.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from gpuslice.contract import names
from gpuslice.kube.log_lines import Line
from nri_plugin.containers.parts import Parts
from nri_plugin.host import device_plugins
from nri_plugin.host.descriptors import version
from nri_plugin.host.device_plugins import KUBELETS_OWN, RecordError
from nri_plugin.kubelet import device_plugin
from nri_plugin.kubelet.device_plugin import DevicePlugin
from nri_plugin.messages import deviceplugin_pb2 as api
from nri_plugin.messages import podresources_pb2 as pod_resources
from nri_plugin.policy import gpu_modes
from nri_plugin.policy.gpu_modes import Assigned, GpuModes
from nri_plugin.policy.model import Gpu
from nri_plugin.policy.totals import Entry
from nri_plugin.supervision import supervised

_LOG: Final = logging.getLogger(__name__)

_TICK_S: Final = 0.5
_LIST_S: Final = 3.0
_SOON_S: Final = 1.0
"""Time from an allocation until its pod is looked up. By then the kubelet has admitted the pod."""
_AGAIN_S: Final = 5.0
"""Least time between two registrations with the same kubelet."""
_RECOVERY_S: Final = 5.0
_LATE_S: Final = 10.0
"""Time without known shares after which the agent logs that it is therefore not registered."""
POD_RESOURCES: Final = "pod-resources/kubelet.sock"
_LIST: Final = "/v1.PodResourcesLister/List"
_ANSWER_S: Final = 5.0
_ANSWER_BYTES: Final = 64 << 20
_REPLICA: Final = "::"
"""Separates the GPU's UUID from the time slice's number in device IDs of NVIDIA's plugin."""
_FAILURES: Final = (OSError, grpc.RpcError, RecordError)


class WholeGpus:
    """The device plugin for whole GPUs. It allocates no GPU of which a container of the ledger, or
    a pod of bound_pods, has a share."""

    def __init__(self, parts: Parts, modes: GpuModes) -> None:
        self._parts = parts
        self._modes = modes
        self._settings = parts.settings
        self._inventory = parts.inventory
        self._metrics = parts.metrics
        directory = parts.settings.device_plugin_dir
        self._plugin = DevicePlugin(directory, self._allocate, self._prefer)
        self._kubelet: object = None
        self._judged = False
        """Whether the node's pods were known when the kubelet's assignments were last read."""
        self._try_at = self._list_at = time.monotonic()
        self._late_at = time.monotonic() + _LATE_S
        self._problems: dict[str, str] = {}

    async def recover(self) -> None:
        """Read the kubelet's assignments before the first container is served. Gives up after
        _RECOVERY_S. Then shares are refused until `run` has read the assignments."""
        for _ in range(round(_RECOVERY_S / _TICK_S)):
            if await self._take_over():
                return
            await asyncio.sleep(_TICK_S)

    async def run(self) -> None:
        """Run until cancelled. An exception restarts only this part of the agent."""
        try:
            await supervised("device plugin", self._rounds)
        finally:
            await self._plugin.stop()

    async def _rounds(self) -> None:
        while True:
            await self._round()
            await asyncio.sleep(_TICK_S)

    async def _round(self) -> None:
        if time.monotonic() >= self._list_at or self._judged != self._parts.knows_pods:
            self._list_at, self._judged = time.monotonic() + _LIST_S, self._parts.knows_pods
            await self._take_over()
        if self._modes.other_plugin:
            # The other plugin's registration has replaced the agent's. If the agent ended its
            # stream now, the kubelet would drop the other registration. The agent registers again
            # when the other plugin is gone.
            self._kubelet = None
        elif self._knows_shares():
            self._log("offer", self._modes.offer.problem(self._inventory.seen))
            shared, listed = self._shared(), filter(self._modes.is_listed, self._gpus())
            self._plugin.show([self._device(gpu, shared) for gpu in listed])
            await self._stay_registered()
        self._metrics.whole_gpus.set(len(self._modes.held))

    def _knows_shares(self) -> bool:
        """Whether all granted shares are known. A new agent does not know the shares yet. If it
        registered then, the kubelet could allocate a GPU with shares."""
        problem = ""
        if not self._parts.ledger.is_complete:
            problem = "the container runtime has not listed its containers yet"
        elif not self._parts.knows_pods:
            problem = "the API server has not listed the node's pods yet"
        late = problem and time.monotonic() >= self._late_at
        self._log("shares", f"not registered with the kubelet: {problem}" if late else "")
        return not problem

    async def _take_over(self) -> bool:
        chosen = self._settings
        try:
            assigned = await _assignments(chosen.kubelet_dir, chosen.device_plugin_dir)
        except _FAILURES as error:
            self._log("list", f"the kubelet's assignments are not known: {_text(error)}")
            if self._modes.unknown:
                self._modes.unknown = f"the kubelet does not report them: {_text(error)}"
            return False
        self._log("list", "")
        before, existing_uids = frozenset(self._modes.held), None
        if self._parts.knows_pods:
            existing_uids = self._parts.bound_pods.uids()
        else:  # shares of a recorded GPU were granted after its whole use: the record is stale
            shared = self._shared()
            recorded = {uuid: u for uuid, u in assigned.recorded.items() if uuid not in shared}
            assigned = replace(assigned, recorded=recorded)
        self._modes.assigned(assigned, existing_uids, time.monotonic())
        for uuid in sorted(before ^ self._modes.held):
            change = "assigned" if uuid in self._modes.held else "no longer assigned"
            _LOG.info(Line(f"GPU {change} whole", uuid=uuid, pod=assigned.pods.get(uuid)))
        for uuid in sorted(self._modes.held & self._shared()):
            self._log(uuid, f"{uuid} is assigned whole to a pod, and others have shares of it")
        return True

    async def _stay_registered(self) -> None:
        place = self._settings.device_plugin_dir / KUBELETS_OWN
        kubelet = version(place)
        if kubelet is None:
            self._log("register", f"no kubelet listens for device plugins at {place}")
            return
        lost = kubelet != self._kubelet or not self._plugin.connected
        if not lost or (kubelet == self._kubelet and time.monotonic() < self._try_at):
            return
        self._kubelet, self._try_at = kubelet, time.monotonic() + _AGAIN_S
        try:
            await self._plugin.register()
        except _FAILURES as error:
            self._log("register", f"not registered with the kubelet: {_text(error)}")
        else:
            self._log("register", "")

    def _log(self, what: str, problem: str) -> None:
        if problem and problem != self._problems.get(what):
            _LOG.warning(Line("problem with whole GPUs", problem=problem))
        self._problems[what] = problem

    # --- calls of the kubelet --------------------------------------------------------------------

    def _gpus(self) -> Sequence[Gpu]:
        return self._inventory.with_problems(self._parts.readiness.unusable)

    def _shared(self) -> AbstractSet[str]:
        """Return the GPUs of which a running container or a bound pod has a share."""
        entries = [Entry(gpu, healthy=True) for gpu in self._inventory.seen]
        return self._parts.ledger.gpus() | self._parts.bound_pods.granted(entries)

    def _device(self, gpu: Gpu, shared: AbstractSet[str]) -> api.Device:
        healthy = not self._modes.unavailable(gpu, shared)
        nodes = [] if gpu.numa is None else [api.NUMANode(ID=gpu.numa)]
        return api.Device(
            ID=gpu.uuid,
            health=device_plugin.HEALTHY if healthy else device_plugin.UNHEALTHY,
            topology=api.TopologyInfo(nodes=nodes) if nodes else None,
        )

    def _allocate(self, uuids: Sequence[str]) -> str:
        refusal = self._modes.allocate(uuids, self._gpus(), self._shared(), time.monotonic())
        if refusal:
            self._metrics.whole_refused.inc()
            _LOG.warning(Line("allocation refused", problem=refusal))
        else:
            self._list_at = min(self._list_at, time.monotonic() + _SOON_S)
            _LOG.info(Line("GPUs allocated whole", uuids=",".join(uuids)))
        return refusal

    def _prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> Sequence[str]:
        return gpu_modes.preferred(available, must, size, self._inventory.seen)


async def _assignments(kubelet_dir: Path, device_plugin_dir: Path) -> Assigned:
    """Return which pods have whole GPUs. Raises grpc.RpcError if the kubelet does not answer, and
    RecordError if its record cannot be read."""
    record = await asyncio.to_thread(device_plugins.read_record, device_plugin_dir)
    options = [("grpc.max_receive_message_length", _ANSWER_BYTES)]
    async with grpc.aio.insecure_channel(f"unix:{kubelet_dir / POD_RESOURCES}", options) as channel:
        ask = channel.unary_unary(
            _LIST,
            request_serializer=pod_resources.ListPodResourcesRequest.SerializeToString,
            response_deserializer=pod_resources.ListPodResourcesResponse.FromString,
        )
        listed = await ask(pod_resources.ListPodResourcesRequest(), timeout=_ANSWER_S)
    return Assigned(dict(_pods(listed)), device_plugins.holders(record))


def _pods(listed: pod_resources.ListPodResourcesResponse) -> Iterator[tuple[str, str]]:
    for pod in listed.pod_resources:
        for container in pod.containers:
            for device in container.devices:
                if device.resource_name == names.RESOURCE_NVIDIA_GPU:
                    for each in device.device_ids:
                        yield each.partition(_REPLICA)[0], f"{pod.namespace}/{pod.name}"


def _text(error: BaseException) -> str:
    if isinstance(error, grpc.RpcError):
        details = getattr(error, "details", None)
        return str(details() if details else error)
    return str(error)
