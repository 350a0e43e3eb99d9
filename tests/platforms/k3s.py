"""k3s beside Docker, whose containerd has the usual directory."""

from __future__ import annotations

from typing import Final

from tests.platforms import rancher
from tests.platforms.platform import PERSISTENCED, Driver, Platform, Toolkit

PLATFORM: Final = Platform(
    name="k3s",
    node="k3s 1.35 on Ubuntu 24.04, containerd 2.2.6, Docker beside it",
    cites=(*rancher.CITES, "NVIDIA/nvidia-container-toolkit issue 982"),
    os={"ID": "ubuntu", "VERSION_ID": "24.04", "PRETTY_NAME": "Ubuntu 24.04"},
    containerd=rancher.containerd("k3s"),
    driver=Driver(drm=True, sockets=(PERSISTENCED,)),
    toolkit=Toolkit(spec="/run/cdi/nvidia.yaml"),
    files={"/run/containerd/io.containerd.runtime.v2.task/moby/of-docker/init.pid": "1"},
    noexec=("/run",),
    nri_on="/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.d",
)
