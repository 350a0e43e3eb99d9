"""GPU Operator with its driver container, on Ubuntu."""

from __future__ import annotations

from typing import Final

from tests.platforms.platform import (
    CRI,
    MANAGEMENT,
    Containerd,
    Driver,
    Platform,
    Toolkit,
    cri,
    runtime,
)

_TOOLKIT: Final = "/usr/local/nvidia/toolkit"
PLATFORM: Final = Platform(
    name="GPU Operator with its driver container",
    node="GPU Operator 26.7 on Ubuntu 24.04; its device plugin is kept off the node",
    cites=(
        "NVIDIA/gpu-operator cmd/nvidia-validator/main.go, controllers/object_controls.go,"
        " deployments/gpu-operator/values.yaml",
        "NVIDIA/gpu-driver-container ubuntu24.04/nvidia-driver",
    ),
    os={"ID": "ubuntu", "VERSION_ID": "24.04", "PRETTY_NAME": "Ubuntu 24.04"},
    containerd=Containerd(
        {"version": 3, "imports": ["/etc/containerd/conf.d/*.toml"]},
        imported={
            "/etc/containerd/conf.d/99-nvidia.toml": {
                "version": 3,
                "plugins": {CRI: cri({"nvidia": runtime(f"{_TOOLKIT}/nvidia-container-runtime")})},
            }
        },
    ),
    driver=Driver(in_container=True),
    toolkit=Toolkit(_TOOLKIT, spec="/run/cdi/management.nvidia.com-gpu.yaml", options=MANAGEMENT),
    noexec=("/run",),
)
