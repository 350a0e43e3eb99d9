"""Talos with NVIDIA's extensions."""

from __future__ import annotations

from typing import Final

from tests.platforms.platform import (
    CRI,
    NRI,
    PERSISTENCED,
    Change,
    Containerd,
    Driver,
    Platform,
    Toolkit,
    cri,
    runtime,
)

_PARTS: Final = "/etc/cri/conf.d/cri.toml"
"""Talos combines this file from its own parts, the extensions' and the configuration's."""
_RUNTIMES: Final = {
    "runc": runtime(systemd=False),
    "nvidia": runtime("/usr/local/bin/nvidia-container-runtime", systemd=False),
}
_LINKED: Final = ("nvidia-smi", "nvidia-ctk", "nvidia-cdi-hook")
PLATFORM: Final = Platform(
    name="Talos",
    node="Talos 1.13, containerd 2.2.3, NVIDIA's extensions 1.19.1",
    cites=(
        "siderolabs/talos hack/cri-containerd.toml, hack/cri-plugin.part, CHANGELOG.md,"
        " pkg/machinery/constants/constants.go",
        "siderolabs/extensions nvidia-gpu, misc/glibc/pkg.yaml",
    ),
    os={"ID": "talos", "VERSION_ID": "v1.13.0", "PRETTY_NAME": "Talos (v1.13.0)"},
    containerd=Containerd(
        {"version": 3, "imports": [_PARTS]},
        file="/etc/cri/containerd.toml",
        imported={
            _PARTS: {
                "version": 3,
                "plugins": {
                    NRI: {"disable": True},
                    CRI: cri(_RUNTIMES, cdi_spec_dirs=["/run/cdi"]),
                },
            }
        },
    ),
    driver=Driver(
        "/usr/local/lib",
        links={
            "/usr/local/lib64": "lib",
            **{f"/usr/bin/{name}": f"../local/bin/{name}" for name in _LINKED},
        },
        programs="/usr/local/bin",
        searched=("/usr/local/lib",),
        drm=True,
        sockets=(PERSISTENCED,),
    ),
    toolkit=Toolkit("/usr/local/bin", spec="/run/cdi/nvidia.yaml", recorded="talos-1.19.1"),
    read_only=("/", "/usr", "/etc"),
    noexec=("/run",),
    no_cdi_directory=True,
    change=Change(
        "no: NRI is off up to Talos 1.13; turn it on in the machine configuration:"
        " `machine.files` with `path: /etc/cri/conf.d/20-customization.part`, `op: create` and"
        ' `content:` of the lines `[plugins."io.containerd.nri.v1.nri"]` and `disable = false`;'
        " and give the namespace the label `pod-security.kubernetes.io/enforce=privileged`",
        because="start containerd with NRI enabled",
        advice="/etc/cri/conf.d/20-customization.part",
        config={"plugins": {NRI: {"disable": False}}},
    ),
    nri_on="path: /etc/cri/conf.d/20-customization.part",
)
