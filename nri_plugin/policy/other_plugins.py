"""Other programs that allocate this node's GPUs, and how the operator keeps them off the node.

Pure. The kubelet records which pod has which GPU of a device plugin. No program on the node records
this for a DRA driver. Therefore any GPU of a DRA driver may be in use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gpuslice.contract import names


@dataclass(frozen=True, slots=True)
class Sign:
    """Evidence of another program. text: describes the evidence. service: the program's systemd
    unit, "" if it is a pod or unknown. is_gke: the program is GKE's own device plugin."""

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
"""How to disable systemd units of node images. No node label disables them."""
_GKE: Final = (
    "make the GKE node pool with the label gke-no-default-nvidia-gpu-device-plugin=true and"
    " gpu-driver-version=disabled"
)
_DRA: Final = (
    "keep the DRA driver's kubelet plugin off this node (kubeletPlugin.affinity in its chart), or"
    " set resources.gpus.enabled=false there"
)


def conflict(signs: Iterable[Sign], node_name: str, operator: bool) -> str:
    """Return which other program allocates the node's GPUs, and what to change, or "". operator:
    NVIDIA's GPU Operator manages the node."""
    listed = list(signs)
    if not listed:
        return ""
    what = "; ".join(sign.text for sign in listed)
    do = advice(listed, node_name, operator)
    return f"another program allocates this node's GPUs ({what}): must be one component only; {do}"


def advice(signs: Iterable[Sign], node_name: str, operator: bool) -> str:
    """Return how to keep either these programs or gpuslice off the node."""
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
