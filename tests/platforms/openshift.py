"""OpenShift: RHCOS with CRI-O, and GPU Operator's driver container."""

from __future__ import annotations

from typing import Final

from tests.platforms.platform import MANAGEMENT, Change, Containerd, Driver, Platform, Toolkit

PLATFORM: Final = Platform(
    name="OpenShift",
    node="RHCOS with CRI-O, GPU Operator with its driver container",
    cites=(
        "openshift/machine-config-operator"
        " templates/worker/01-worker-container-runtime/_base/files/crio.yaml",
        "cri-o/cri-o docs/crio.conf.5.md",
        "NVIDIA/gpu-operator controllers/object_controls.go",
    ),
    os={"ID": "rhel", "VARIANT_ID": "coreos", "PRETTY_NAME": "Red Hat Enterprise Linux CoreOS"},
    containerd=Containerd(absent=True),
    driver=Driver("/usr/lib64", in_container=True),
    toolkit=Toolkit(
        "/usr/local/nvidia/toolkit",
        spec="/run/cdi/management.nvidia.com-gpu.yaml",
        options=MANAGEMENT,
    ),
    read_only=("/usr",),
    change=Change(
        "no: CRI-O is not supported; share GPUs on nodes whose container runtime is containerd",
        because="cri-o",
        advice="run containerd 2.2 or later on nodes whose GPUs are shared",
        installs_containerd=True,
    ),
)
