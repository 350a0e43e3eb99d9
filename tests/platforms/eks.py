"""EKS' nodes with Amazon Linux 2023, which nodeadm configures."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tests.platforms import toml
from tests.platforms.platform import (
    CRI,
    FABRICMANAGER,
    PERSISTENCED,
    Containerd,
    Driver,
    Platform,
    Toolkit,
    cri,
    runtime,
)

_RUNTIME: Final = "/usr/bin/nvidia-container-runtime"


def _containerd(enable_cdi: bool) -> Containerd:
    plugin = toml.merged(
        cri({"nvidia": runtime(_RUNTIME)}, default="nvidia", enable_cdi=enable_cdi),
        {"containerd": {"discard_unpacked_layers": True}},
    )
    return Containerd(
        {
            "version": 3,
            "root": "/var/lib/containerd",
            "state": "/run/containerd",
            "plugins": {CRI: plugin},
        }
    )


PLATFORM: Final = Platform(
    name="EKS, Amazon Linux 2023",
    node="EKS 1.32 or later, containerd 2; NVIDIA's runtime is the default",
    cites=(
        "awslabs/amazon-eks-ami nodeadm/internal/containerd/config.go, runtime_config_nvidia.go,"
        " config*.template.toml; templates/al2023/provisioners/install-nvidia-driver.sh",
    ),
    os={"ID": "amzn", "VERSION_ID": "2023", "PRETTY_NAME": "Amazon Linux 2023"},
    containerd=_containerd(True),
    driver=Driver("/usr/lib64", sockets=(PERSISTENCED, FABRICMANAGER)),
    toolkit=Toolkit(spec="/run/cdi/nvidia.yaml", runtime=_RUNTIME),
    files={"/usr/bin/nodeadm": ""},
    nri_on="or in its NodeConfig:",
)
WITHOUT_CDI: Final = replace(PLATFORM, containerd=_containerd(False))
"""EKS 1.30 and 1.31, where containerd ignores a CDI device that the kubelet names."""
