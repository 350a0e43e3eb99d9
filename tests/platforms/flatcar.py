"""Flatcar, whose service builds NVIDIA's driver into /opt."""

from __future__ import annotations

from typing import Final

from tests.platforms.platform import OLD_CRI, Containerd, Driver, Platform

_DRIVER: Final = "580.65.06/6.12.58-flatcar"
PLATFORM: Final = Platform(
    name="Flatcar",
    node="Flatcar stable 4593, containerd 2.1.5, the driver of nvidia.service",
    cites=(
        "flatcar/scripts nvidia-drivers-service/files/bin/setup-nvidia, coreos/sysext/containerd",
    ),
    os={"ID": "flatcar", "VERSION_ID": "4593.0.0", "PRETTY_NAME": "Flatcar Container Linux"},
    containerd=Containerd(
        {
            "version": 2,
            "plugins": {
                OLD_CRI: {
                    "enable_selinux": True,
                    "containerd": {
                        "runtimes": {
                            "runc": {
                                "runtime_type": "io.containerd.runc.v2",
                                "options": {"SystemdCgroup": True},
                            }
                        }
                    },
                }
            },
        },
        file="/usr/share/containerd/config.toml",
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
)
