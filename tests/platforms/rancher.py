"""containerd as k3s and RKE2 run it."""

from __future__ import annotations

from tests.platforms.platform import CRI, NRI, Containerd


def containerd(distribution: str, selinux: bool = False) -> Containerd:
    """distribution: k3s or rke2."""
    place = f"/var/lib/rancher/{distribution}/agent"
    runc = {"runtime_type": "io.containerd.runc.v2", "options": {"SystemdCgroup": True}}
    nvidia = {
        "runtime_type": "io.containerd.runc.v2",
        "options": {"BinaryName": "/usr/bin/nvidia-container-runtime", "SystemdCgroup": True},
    }
    return Containerd(
        {
            "version": 3,
            "imports": [f"{place}/etc/containerd/config-v3.toml.d/*.toml"],
            "root": f"{place}/containerd",
            "state": "/run/k3s/containerd",
            "grpc": {"address": "/run/k3s/containerd/containerd.sock"},
            "plugins": {
                CRI: {
                    "enable_selinux": selinux,
                    "containerd": {"runtimes": {"runc": runc, "nvidia": nvidia}},
                },
                NRI: {"disable": False},
            },
        },
        file=f"{place}/etc/containerd/config.toml",
        root=f"{place}/containerd",
        state="/run/k3s/containerd",
    )


CITES = (
    "rancher/rke2 pkg/executor/staticpod/spw.go, pkg/bootstrap/bootstrap.go",
    "k3s-io/k3s pkg/agent/containerd/runtimes.go, templates_linux.go",
    "k3s-io/docs docs/advanced.md",
)
