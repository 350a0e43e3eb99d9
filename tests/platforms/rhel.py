"""RHEL 9 with NVIDIA's packages. containerd labels containers, as GPU Operator demands."""

from __future__ import annotations

from typing import Final

from tests.platforms.platform import CRI, PERSISTENCED, Containerd, Driver, Platform, Toolkit
from tests.platforms.selinux import CONTAINERS

PLATFORM: Final = Platform(
    name="RHEL 9, SELinux enforcing",
    node="RHEL 9, Docker's containerd.io with enable_selinux = true, NVIDIA's packages",
    cites=(
        "NVIDIA/nvidia-container-toolkit packaging/rpm/SPECS, deployments/systemd",
        "NVIDIA/cloud-native-docs gpu-operator/getting-started.rst",
        "containerd/containerd internal/cri/config/config_unix.go",
    ),
    os={"ID": "rhel", "VERSION_ID": "9.6", "PRETTY_NAME": "Red Hat Enterprise Linux 9.6"},
    containerd=Containerd({"version": 3, "plugins": {CRI: {"enable_selinux": True}}}),
    driver=Driver("/usr/lib64", drm=True, sockets=(PERSISTENCED,)),
    toolkit=Toolkit(spec="/run/cdi/nvidia.yaml"),
    selinux=CONTAINERS,
)
