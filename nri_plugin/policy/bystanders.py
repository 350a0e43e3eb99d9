"""Containers of pods without a claim to which NVIDIA's runtime would give GPUs.

Pure. Such a GPU has no limit, and shares of it may be granted. Where it is the default runtime, an
image's NVIDIA_VISIBLE_DEVICES=all is enough, so the variable is overridden; by a RuntimeClass, a
privilege or the kubelet's own directories the pod's author asks for the GPUs knowingly, and the
container keeps them.
Invariant: a container to which the runtime gives nothing is not adjusted.
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
"""The removal lets it take the place of a value of another plugin, which would be a conflict."""
WARNING: Final = (
    f"{_KEY} is set to {names.VISIBLE_DEVICES_NONE}: the GPUs of this node are shared, and the"
    " container has no share; request one, or use a RuntimeClass of NVIDIA's runtime"
)
_PODS: Final = "pods"


class Gpus(Enum):
    """What NVIDIA's runtime gives the container."""

    NONE = "none"
    OVERRIDDEN = "overridden"
    UNLIMITED = "unlimited"


@dataclass(frozen=True, slots=True)
class Situation:
    """toolkit: of the runtime. ours: gpuslice allocates this node's GPUs. assigned: pods to which
    the kubelet assigned a GPU, by NAMESPACE/NAME and UID. kubelet_dirs: the kubelet's directory, by
    each of its paths on the host."""

    toolkit: Toolkit
    ours: bool
    assigned: AbstractSet[str]
    kubelet_dirs: Collection[str]


def gpus(pod: Pod, container: Container, here: Situation) -> Gpus:
    """Judge a container that NVIDIA's runtime will run."""
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
        # The runtime replaces the first of them, and the last counts.
        or sum(line.startswith(f"{_KEY}=") for line in container.env) > 1
    )
    return Gpus.UNLIMITED if keeps else Gpus.OVERRIDDEN


def _has_gpu(container: Container) -> bool:
    """Whether a device plugin gave it one."""
    nodes = (nvidia.is_node(device.path, device.major) for device in container.devices)
    return any(nodes) or any(map(nvidia.is_of_vendor, container.cdi_names))


def _manages_gpus(container: Container, kubelet_dirs: Collection[str]) -> bool:
    """Whether it has directories of the kubelet, as device plugins and exporters have. The volumes
    of all pods are below the kubelet's directory of pods."""
    return any(
        is_below(f"{source}/", kubelet) and not is_below(source, f"{kubelet}/{_PODS}")
        for source in (normal(m.source) for m in container.mounts if m.source.startswith("/"))
        for kubelet in kubelet_dirs
    )
