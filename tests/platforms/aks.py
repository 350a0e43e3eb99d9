"""AKS' nodes with Ubuntu, which AgentBaker configures."""

from __future__ import annotations

from typing import Final

from tests.platforms.platform import CRI, Containerd, Driver, Platform, Toolkit, cri, runtime

_RUNTIME: Final = "/usr/bin/nvidia-container-runtime"
_RUNTIMES: Final = dict.fromkeys(("nvidia-container-runtime", "untrusted"), runtime(_RUNTIME))
PLATFORM: Final = Platform(
    name="AKS, Ubuntu",
    node="AKS' Ubuntu 24.04, containerd 2.3.3; NVIDIA's runtime is the default",
    cites=(
        "Azure/AgentBaker aks-node-controller/parser/templates, parts/common/components.json,"
        " cse_config.sh",
        "Azure/aks-gpu install.sh, config.sh",
    ),
    label="kubernetes.azure.com/accelerator=nvidia",
    os={"ID": "ubuntu", "VERSION_ID": "24.04", "PRETTY_NAME": "Ubuntu 24.04"},
    containerd=Containerd(
        {"version": 2, "plugins": {CRI: cri(_RUNTIMES, default="nvidia-container-runtime")}}
    ),
    driver=Driver(
        links={
            f"/usr/bin/lib64/{name}": f"/usr/lib/x86_64-linux-gnu/{name}"
            for name in ("libcuda.so.1", "libnvidia-ml.so.1")
        },
        searched=("/usr/bin/lib64",),
    ),
    toolkit=Toolkit(spec="/run/cdi/nvidia.yaml", recorded="aks-1.19.1", runtime=_RUNTIME),
    files={"/etc/kubernetes/azure.json": "{}"},
    noexec=("/run",),
    nri_on="--os-sku Ubuntu2404, AzureLinux3",
)
