"""GKE's nodes with Container-Optimized OS and with Ubuntu."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tests.platforms.platform import Containerd, Driver, Platform, Plugin

COS: Final = Platform(
    name="GKE, Container-Optimized OS",
    node="GKE 1.33, containerd 2.0; a node pool with the label"
    " gke-no-default-nvidia-gpu-device-plugin=true, and Google's DaemonSet for the driver",
    cites=(
        "GoogleCloudPlatform/container-engine-accelerators nvidia-driver-installer/cos,"
        " cmd/nvidia_gpu",
        "kubernetes/kubernetes cluster/gce/gci/node.yaml",
        "cloud.google.com/container-optimized-os/docs/concepts/disks-and-filesystem",
        "docs.cloud.google.com/kubernetes-engine/docs/deprecations/migrate-containerd-2",
    ),
    label="cloud.google.com/gke-accelerator",
    os={"ID": "cos", "VERSION_ID": "121", "PRETTY_NAME": "Container-Optimized OS"},
    containerd=Containerd(),
    driver=Driver("/home/kubernetes/bin/nvidia/lib64", programs="/home/kubernetes/bin/nvidia/bin"),
    # /home/kubernetes/bin, which has the driver, is mounted again with exec.
    read_only=("/", "/usr"),
    noexec=("/var",),
    plugin=Plugin("nvidiaGPU-1795715260.sock", "gke-no-default-nvidia-gpu-device-plugin=true"),
    nri_on="a node pool of GKE 1.33 or later",
)
UBUNTU: Final = replace(
    COS,
    name="GKE, Ubuntu",
    cites=(
        "GoogleCloudPlatform/container-engine-accelerators nvidia-driver-installer/ubuntu,"
        " cmd/nvidia_gpu/nvidia_gpu.go",
        "docs.cloud.google.com/kubernetes-engine/docs/deprecations/migrate-containerd-2",
    ),
    os={"ID": "ubuntu", "VERSION_ID": "24.04", "PRETTY_NAME": "Ubuntu 24.04"},
    read_only=(),
    noexec=("/run",),
)
