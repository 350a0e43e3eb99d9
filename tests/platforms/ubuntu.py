"""Ubuntu with NVIDIA's driver and container toolkit as packages."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tests.platforms.platform import PERSISTENCED, Containerd, Driver, Platform, Toolkit

_SPEC: Final = "/run/cdi/nvidia.yaml"
PLATFORM: Final = Platform(
    name="Ubuntu with NVIDIA's toolkit package, 1.17 to 1.20",
    node="Ubuntu 24.04, containerd 2.2.1 of its package, kubeadm",
    cites=(
        "NVIDIA/nvidia-container-toolkit deployments/systemd, packaging/debian, internal/edits",
        "packages.ubuntu.com/noble/amd64/containerd",
    ),
    os={"ID": "ubuntu", "VERSION_ID": "24.04", "PRETTY_NAME": "Ubuntu 24.04"},
    containerd=Containerd(),
    driver=Driver(drm=True, sockets=(PERSISTENCED,)),
    toolkit=Toolkit(spec=_SPEC),
    noexec=("/run",),
)
EARLIER: Final = (
    # Before 1.18 no unit of the package makes a spec, but an administrator may.
    replace(PLATFORM, toolkit=Toolkit()),
    replace(PLATFORM, toolkit=Toolkit(spec="/etc/cdi/nvidia.yaml", recorded="package-1.17.8")),
    replace(PLATFORM, toolkit=Toolkit(spec=_SPEC, recorded="package-1.18.2")),
    replace(PLATFORM, toolkit=Toolkit(spec=_SPEC, recorded="package-1.19.1")),
)
"""The same node with earlier versions of the package."""
