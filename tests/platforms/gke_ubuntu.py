"""GKE's nodes of Ubuntu."""

from __future__ import annotations

from typing import Final

from tests.platforms.platform import Containerd, Driver, Platform, Plugin

PLATFORM: Final = Platform(
    name="GKE, Ubuntu",
    node="GKE 1.33, containerd 2.0; a node pool with the label"
    " gke-no-default-nvidia-gpu-device-plugin=true, and Google's DaemonSet for the driver",
    cites=(
        "GoogleCloudPlatform/container-engine-accelerators nvidia-driver-installer/ubuntu,"
        " cmd/nvidia_gpu/nvidia_gpu.go",
        "docs.cloud.google.com/kubernetes-engine/docs/deprecations/migrate-containerd-2",
    ),
    label="cloud.google.com/gke-accelerator",
    os={"ID": "ubuntu", "VERSION_ID": "24.04", "PRETTY_NAME": "Ubuntu 24.04"},
    containerd=Containerd(),
    driver=Driver("/home/kubernetes/bin/nvidia/lib64", programs="/home/kubernetes/bin/nvidia/bin"),
    noexec=("/run",),
    plugin=Plugin("nvidiaGPU-1795715260.sock", "gke-no-default-nvidia-gpu-device-plugin=true"),
    nri_on="a node pool of GKE 1.33 or later",
)
