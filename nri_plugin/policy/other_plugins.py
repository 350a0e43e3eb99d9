"""Other programs that allocate GPUs of this node, and how to keep each off it.

Pure: signs in, texts out. A device plugin tells the kubelet which pod has which GPU, and the
kubelet records it. A DRA driver tells no program on the node: each of its GPUs may be a pod's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gpuslice.contract import names


@dataclass(frozen=True, slots=True)
class Sign:
    """What shows another program. text: for people. service: the systemd unit of the host that the
    program is; "": it is a pod, or that is not known. is_gke: it is GKE's own device plugin."""

    text: str
    is_dra: bool = False
    service: str = ""
    is_gke: bool = False


_BOTTLEROCKET: Final = (
    "set settings.{setting}.nvidia.enabled = false in Bottlerocket's settings; a release without"
    " that setting cannot be without it"
)
_AKS: Final = "make the AKS node pool with unmanaged GPUs (managementMode: Unmanaged)"
_SERVICES: Final[Mapping[str, str]] = {
    "nvidia-k8s-device-plugin.service": _BOTTLEROCKET.format(setting="kubelet-device-plugins"),
    "nvidia-dra-driver-gpu.service": _BOTTLEROCKET.format(setting="kubelet-dra-drivers"),
    "nvidia-device-plugin.service": _AKS,
    "dra-driver-nvidia-gpu.service": _AKS,
}
"""Units of node images, which no label of a node and no DaemonSet keeps off it."""
_GKE: Final = (
    "make the GKE node pool with the label gke-no-default-nvidia-gpu-device-plugin=true and"
    " gpu-driver-version=disabled"
)
_DRA: Final = (
    "keep the DRA driver's kubelet plugin off this node (kubeletPlugin.affinity in its chart), or"
    " set resources.gpus.enabled=false there"
)


def conflict(signs: Iterable[Sign], node_name: str, operator: bool) -> str:
    """Return why the node is another program's, and what to change; "": it is ours. operator:
    NVIDIA's GPU Operator manages the node."""
    listed = list(signs)
    if not listed:
        return ""
    what = "; ".join(sign.text for sign in listed)
    do = advice(listed, node_name, operator)
    return f"another program allocates this node's GPUs ({what}): must be one component only; {do}"


def advice(signs: Iterable[Sign], node_name: str, operator: bool) -> str:
    """Return how to keep the programs of these signs off the node, or gpuslice."""
    advised = dict.fromkeys(_advice(sign, node_name, operator) for sign in signs)
    return f"{'; '.join(advised)}, or keep gpuslice off it by nodeSelector"


def _advice(sign: Sign, node_name: str, operator: bool) -> str:
    if sign.service:
        return _SERVICES.get(sign.service, f"stop it: systemctl disable --now {sign.service}")
    if sign.is_dra:
        return _DRA
    if operator:
        labels = (names.LABEL_DEPLOY_DEVICE_PLUGIN, names.LABEL_DEPLOY_VALIDATOR)
        wanted = " ".join(f"{label}=false" for label in labels)
        return f"kubectl label node {node_name} {wanted} --overwrite"
    return _GKE if sign.is_gke else "keep it off this node"
