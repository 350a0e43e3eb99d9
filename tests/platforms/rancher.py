"""k3s and RKE2, with containerd as both run it."""

from __future__ import annotations

from typing import Final

from tests.platforms.platform import (
    CRI,
    NRI,
    PERSISTENCED,
    Containerd,
    Driver,
    Platform,
    Toolkit,
    cri,
    runtime,
)
from tests.platforms.selinux import CONTAINERS


def _containerd(distribution: str, selinux: bool = False) -> Containerd:
    place = f"/var/lib/rancher/{distribution}/agent"
    runtimes = {"runc": runtime(), "nvidia": runtime("/usr/bin/nvidia-container-runtime")}
    return Containerd(
        {
            "version": 3,
            "imports": [f"{place}/etc/containerd/config-v3.toml.d/*.toml"],
            "root": f"{place}/containerd",
            "state": "/run/k3s/containerd",
            "grpc": {"address": "/run/k3s/containerd/containerd.sock"},
            "plugins": {CRI: cri(runtimes, enable_selinux=selinux), NRI: {"disable": False}},
        },
        file=f"{place}/etc/containerd/config.toml",
        root=f"{place}/containerd",
        state="/run/k3s/containerd",
    )


_CITES: Final = (
    "rancher/rke2 pkg/executor/staticpod/spw.go, pkg/bootstrap/bootstrap.go",
    "k3s-io/k3s pkg/agent/containerd/runtimes.go, templates_linux.go",
    "k3s-io/docs docs/advanced.md",
)
RKE2: Final = Platform(
    name="RKE2",
    node="RKE2 1.35 by its RPMs on RHEL 9, containerd 2.2.6, SELinux enforcing",
    cites=(*_CITES, "docs.nvidia.com/nvsentinel deploying-on-suse-linux-enterprise-and-rke-2"),
    os={"ID": "rhel", "VERSION_ID": "9.6", "PRETTY_NAME": "Red Hat Enterprise Linux 9.6"},
    containerd=_containerd("rke2", selinux=True),
    driver=Driver("/usr/lib64", drm=True, sockets=(PERSISTENCED,)),
    toolkit=Toolkit(spec="/run/cdi/nvidia.yaml"),
    selinux=CONTAINERS,
    nri_on="/var/lib/rancher/rke2/agent/etc/containerd/config-v3.toml.d",
)
K3S: Final = Platform(
    name="k3s",
    node="k3s 1.35 on Ubuntu 24.04, containerd 2.2.6, Docker beside it",
    cites=(*_CITES, "NVIDIA/nvidia-container-toolkit issue 982"),
    os={"ID": "ubuntu", "VERSION_ID": "24.04", "PRETTY_NAME": "Ubuntu 24.04"},
    containerd=_containerd("k3s"),
    driver=Driver(drm=True, sockets=(PERSISTENCED,)),
    toolkit=Toolkit(spec="/run/cdi/nvidia.yaml"),
    files={"/run/containerd/io.containerd.runtime.v2.task/moby/of-docker/init.pid": "1"},
    noexec=("/run",),
    nri_on="/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.d",
)
