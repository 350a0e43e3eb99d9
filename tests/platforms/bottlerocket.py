"""EKS' nodes with Bottlerocket, whose image has NVIDIA's driver."""

from __future__ import annotations

from typing import Final

from tests.platforms.platform import (
    CRI,
    PERSISTENCED,
    Containerd,
    Driver,
    Platform,
    Plugin,
    Toolkit,
    cri,
    runtime,
)
from tests.platforms.selinux import BOTTLEROCKET

_RUNTIMES: Final = {
    "nvidia": runtime("nvidia-container-runtime"),
    "nvidia-cdi": runtime("nvidia-container-runtime.cdi"),
    "nvidia-legacy": runtime("nvidia-container-runtime.legacy"),
}
PLATFORM: Final = Platform(
    name="EKS, Bottlerocket",
    node="aws-k8s-1.35-nvidia, containerd 2.2, SELinux enforcing; with"
    " settings.kubelet-device-plugins.nvidia.enabled = false",
    cites=(
        "bottlerocket-os/bottlerocket-core-kit packages/containerd-2.2,"
        " packages/nvidia-container-toolkit, packages/nvidia-k8s-device-plugin,"
        " packages/selinux-policy, packages/release",
        "bottlerocket-os/bottlerocket-kernel-kit packages/kmod-6.12-nvidia-r580",
        "bottlerocket-os/bottlerocket SECURITY_FEATURES.md",
    ),
    os={"ID": "bottlerocket", "VERSION_ID": "1.50.0", "VARIANT_ID": "aws-k8s-1.35-nvidia"},
    containerd=Containerd(
        {
            "version": 3,
            "imports": ["/etc/containerd/config.d/*.toml"],
            "plugins": {CRI: cri(_RUNTIMES, default="nvidia", enable_selinux=True)},
        }
    ),
    driver=Driver(
        "/usr/lib",
        links={
            f"/usr/lib/nvidia/tesla/{name}": f"../../{name}"
            for name in ("libcuda.so.1", "libnvidia-ml.so.1")
        },
        searched=("/usr/lib",),
        sockets=(PERSISTENCED,),
    ),
    toolkit=Toolkit(
        spec="/etc/cdi/nvidia.json",
        recorded="bottlerocket-1.17.8",
        runtime="/usr/bin/nvidia-container-runtime",
        config={
            "accept-nvidia-visible-devices-envvar-when-unprivileged": False,
            "accept-nvidia-visible-devices-as-volume-mounts": True,
        },
    ),
    read_only=("/", "/usr"),
    plugin=Plugin(
        "nvidia-gpu.sock",
        "settings.kubelet-device-plugins.nvidia.enabled = false",
        "nvidia-k8s-device-plugin.service",
    ),
    selinux=BOTTLEROCKET,
    nri_on="aws-k8s-1.33-nvidia",
)
