"""How to turn NRI on, for each platform that needs its own instructions. Pure.

On most nodes an operator edits containerd's configuration file. On these platforms the file is
generated from another source at each start of the node, or cannot be changed at all.
Sources: siderolabs/talos hack/cri-plugin.part, bottlerocket-os/bottlerocket-core-kit
packages/containerd-*, awslabs/amazon-eks-ami nodeadm/internal/containerd, Azure/AgentBaker
parts/common/components.json, k3s-io/docs docs/advanced.md, flatcar/scripts
coreos/sysext/containerd.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_LINES: Final = "[plugins.'io.containerd.nri.v1.nri']\n  disable = false"
_IN_TALOS: Final = """\
in the machine configuration, which reboots the node:
machine:
  files:
    - path: /etc/cri/conf.d/20-customization.part
      op: create
      content: |
        [plugins."io.containerd.nri.v1.nri"]
          disable = false"""
_IN_EKS: Final = """\
use a node image for Kubernetes 1.30 or later, which has it on; or in its NodeConfig:
spec:
  containerd:
    config: |
      [plugins.'io.containerd.nri.v1.nri']
        disable = false"""
_IN_FLATCAR: Final = f"""\
use a release with containerd 2, which has it on; or copy /usr/share/containerd/config.toml to
/etc/containerd/config.toml, name that file as CONTAINERD_CONFIG in a drop-in of containerd.service,
and set in it:
{_LINES}"""


def _rancher(name: str) -> str:
    place = f"/var/lib/rancher/{name}/agent/etc/containerd"
    return (
        f"use a release with containerd 2, which has it on; or in a file of"
        f" {place}/config-v3.toml.d (containerd 1.7: in {place}/config.toml.tmpl), then restart"
        f" {name}:\n{_LINES}"
    )


NRI: Final[Mapping[str, str]] = {
    "talos": _IN_TALOS,
    "bottlerocket": "use a variant for Kubernetes 1.33 or later (aws-k8s-1.33-nvidia), whose"
    " containerd 2 has it on; no setting changes it in earlier ones",
    "flatcar": _IN_FLATCAR,
    "gke": "use a node pool of GKE 1.33 or later, whose containerd 2 has it on",
    "aks": "use a node pool of Ubuntu 24.04 or Azure Linux 3 (--os-sku Ubuntu2404, AzureLinux3),"
    " whose containerd 2 has it on",
    "eks": _IN_EKS,
    "k3s": _rancher("k3s"),
    "rke2": _rancher("rke2"),
}
"""Platform -> instructions that turn NRI on."""
