"""Flatcar, whose service builds NVIDIA's driver into /opt."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tests.platforms.platform import (
    OLD_CRI,
    Containerd,
    Driver,
    Platform,
    Table,
    Toolkit,
    cri,
    runtime,
)


def _config(default: str, runtimes: Table) -> Table:
    """Return what both files of containerd's configuration have: Flatcar's and the extension's."""
    return {"version": 2, "plugins": {OLD_CRI: cri(runtimes, default, enable_selinux=True)}}


_RUNTIME: Final = "/usr/bin/nvidia-container-runtime"
_DRIVER: Final = "580.65.06/6.12.58-flatcar"
PLATFORM: Final = Platform(
    name="Flatcar",
    node="Flatcar stable 4593, containerd 2.1.5, the driver of nvidia.service",
    cites=(
        "flatcar/scripts nvidia-drivers-service/files/bin/setup-nvidia, coreos/sysext/containerd",
    ),
    os={"ID": "flatcar", "VERSION_ID": "4593.0.0", "PRETTY_NAME": "Flatcar Container Linux"},
    containerd=Containerd(
        _config("runc", {"runc": runtime()}), file="/usr/share/containerd/config.toml"
    ),
    driver=Driver(
        f"/opt/nvidia/{_DRIVER}/usr/lib64",
        links={
            "/opt/nvidia/current": _DRIVER,
            "/opt/bin/nvidia-smi": "../nvidia/current/usr/bin/nvidia-smi",
        },
        programs=f"/opt/nvidia/{_DRIVER}/usr/bin",
        searched=("/opt/nvidia/current/usr/lib64",),
    ),
    read_only=("/usr",),
    nri_on="CONTAINERD_CONFIG in a drop-in of containerd.service",
)
WITH_SYSEXTS: Final = replace(
    PLATFORM,
    cites=(
        "flatcar/scripts build_library/extra_sysexts.sh",
        "flatcar/sysext-bakery nvidia-runtime",
    ),
    containerd=Containerd(
        _config("nvidia", {"runc": runtime(), "nvidia": runtime(_RUNTIME)}),
        file="/etc/containerd/config-nvidia.toml",
    ),
    driver=Driver("/usr/lib64"),
    toolkit=Toolkit(spec="/run/cdi/nvidia.yaml", runtime=_RUNTIME),
)
"""A node whose driver and NVIDIA runtime are systemd extension images, with files in /usr."""
