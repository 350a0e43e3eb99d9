"""Identifies the distribution or provider of this node. Reads files only.

Knows only the platforms of nri_instructions.py, which configure containerd in their own ways.
"""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import Final

from gpuslice.gpu.driver_root import resolve

_SYSTEMS: Final = {"talos": "talos", "bottlerocket": "bottlerocket", "flatcar": "flatcar"}
"""ID in os-release -> platform. These systems are configured alike at every provider."""
_FILES: Final = {
    "/var/lib/rancher/rke2/agent": "rke2",
    "/var/lib/rancher/k3s/agent": "k3s",
    "/home/kubernetes/bin": "gke",
    "/etc/kubernetes/azure.json": "aks",
    "/usr/bin/nodeadm": "eks",
}
"""Path that exists only on a platform's nodes -> platform."""


def find(root: Path) -> str:
    """Return the platform, a key of nri_instructions.NRI; "" on any other node. root: path at which
    this process sees the host's root directory."""
    if (known := _SYSTEMS.get(_system(root))) is not None:
        return known
    for path, platform in _FILES.items():
        with contextlib.suppress(OSError):
            if resolve(root, path).exists():
                return platform
    return ""


def _system(root: Path) -> str:
    """Return the value of ID in os-release; "" if there is none."""
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        with contextlib.suppress(OSError, ValueError):
            for line in resolve(root, path).read_text().splitlines():
                key, _, value = line.partition("=")
                if key == "ID":
                    return "".join(shlex.split(value))
    return ""
