"""RKE2 by its RPMs, which turn SELinux on for containers."""

from __future__ import annotations

from typing import Final

from tests.platforms import rancher
from tests.platforms.platform import PERSISTENCED, Driver, Platform, Toolkit
from tests.platforms.selinux import CONTAINERS

PLATFORM: Final = Platform(
    name="RKE2",
    node="RKE2 1.35 by its RPMs on RHEL 9, containerd 2.2.6, SELinux enforcing",
    cites=(
        *rancher.CITES,
        "docs.nvidia.com/nvsentinel deploying-on-suse-linux-enterprise-and-rke-2",
    ),
    os={"ID": "rhel", "VERSION_ID": "9.6", "PRETTY_NAME": "Red Hat Enterprise Linux 9.6"},
    containerd=rancher.containerd("rke2", selinux=True),
    driver=Driver("/usr/lib64", drm=True, sockets=(PERSISTENCED,)),
    toolkit=Toolkit(spec="/run/cdi/nvidia.yaml"),
    selinux=CONTAINERS,
    nri_on="/var/lib/rancher/rke2/agent/etc/containerd/config-v3.toml.d",
)
