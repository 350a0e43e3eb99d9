"""Containers of pods without a claim to which NVIDIA's runtime would give GPUs.

Pure. Such a container has no limit, and may disturb tenants of the GPU. Where NVIDIA's runtime is
the default, an image that sets NVIDIA_VISIBLE_DEVICES=all gets every GPU. Therefore the agent
overrides this variable. A container keeps its GPUs where its author requested them knowingly: by a
RuntimeClass, by privilege, or by a mount of the kubelet's directories.
Invariant: a container to which the runtime gives no GPU is not adjusted.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from typing import Final

from gpuslice.contract import names
from nri_plugin.policy import nvidia
from nri_plugin.policy.model import Container, Pod
from nri_plugin.policy.nvidia import Toolkit
from nri_plugin.policy.places import is_below, normal
from nri_plugin.policy.plan import ContainerPlan

_KEY: Final = names.ENV_VISIBLE_DEVICES
OVERRIDE: Final = ContainerPlan(((f"-{_KEY}", ""), (_KEY, names.VISIBLE_DEVICES_NONE)))
"""The plan that hides the GPUs. It first removes the variable, because NRI otherwise reports a
conflict with another plugin that sets the variable."""
WARNING: Final = (
    f"{_KEY} is set to {names.VISIBLE_DEVICES_NONE}: the GPUs of this node are shared, and the"
    " container has no share; request one, or use a RuntimeClass of NVIDIA's runtime"
)
_PODS: Final = "pods"


class Gpus(Enum):
    """The GPUs that NVIDIA's runtime gives: none, none after our override, or without a limit."""

    NONE = "none"
    OVERRIDDEN = "overridden"
    UNLIMITED = "unlimited"


@dataclass(frozen=True, slots=True)
class Situation:
    """The node's state. toolkit: the configuration of NVIDIA's runtime. ours: gpuslice allocates
    this node's GPUs. assigned: the NAMESPACE/NAME and UID of pods to which the kubelet assigned a
    GPU. kubelet_dirs: the kubelet's directories on the host."""

    toolkit: Toolkit
    ours: bool
    assigned: AbstractSet[str]
    kubelet_dirs: Collection[str]


def gpus(pod: Pod, container: Container, here: Situation) -> Gpus:
    """Return which GPUs a container gets that NVIDIA's runtime will run."""
    if here.toolkit.of_mounts and any(nvidia.is_request(m.destination) for m in container.mounts):
        return Gpus.UNLIMITED
    obeyed = container.privileged or here.toolkit.of_unprivileged
    if not (obeyed and nvidia.asks_for_gpus(container.env)):
        return Gpus.NONE
    keeps = (
        not here.ours
        or pod.runtime_handler
        or container.privileged
        or not here.assigned.isdisjoint((pod.uid, f"{pod.namespace}/{pod.name}"))
        or _has_gpu(container)
        or _manages_gpus(container, here.kubelet_dirs)
        # An override would replace only the first of two such lines, and programs read the last.
        or sum(line.startswith(f"{_KEY}=") for line in container.env) > 1
    )
    return Gpus.UNLIMITED if keeps else Gpus.OVERRIDDEN


def _has_gpu(container: Container) -> bool:
    """Whether a device plugin gave the container a GPU."""
    nodes = (nvidia.is_node(device.path, device.major) for device in container.devices)
    return any(nodes) or any(map(nvidia.is_of_vendor, container.cdi_names))


def _manages_gpus(container: Container, kubelet_dirs: Collection[str]) -> bool:
    """Whether the container mounts directories of the kubelet, as device plugins and exporters do.
    Mounts from the kubelet's directory `pods`, which has all pods' volumes, do not count."""
    return any(
        is_below(f"{source}/", kubelet) and not is_below(source, f"{kubelet}/{_PODS}")
        for source in (normal(m.source) for m in container.mounts if m.source.startswith("/"))
        for kubelet in kubelet_dirs
    )
