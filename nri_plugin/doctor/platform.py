"""Which distribution or provider made this node. Reads files only.

The platforms are those of nri_instructions.py, which configure containerd in a way of their own.
"""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import Final

from gpuslice.gpu.driver_root import resolve

_SYSTEMS: Final = {"talos": "talos", "bottlerocket": "bottlerocket", "flatcar": "flatcar"}
"""By ID of os-release, of systems that are configured in the same way wherever they run."""
_FILES: Final = {
    "/var/lib/rancher/rke2/agent": "rke2",
    "/var/lib/rancher/k3s/agent": "k3s",
    "/home/kubernetes/bin": "gke",
    "/etc/kubernetes/azure.json": "aks",
    "/usr/bin/nodeadm": "eks",
}
"""By a path that only its nodes have."""


def find(root: Path) -> str:
    """Return a key of nri_instructions.NRI; "": this node's containerd is configured by its own
    file. root: the host's root directory as seen here."""
    if (known := _SYSTEMS.get(_system(root))) is not None:
        return known
    for path, platform in _FILES.items():
        with contextlib.suppress(OSError):
            if resolve(root, path).exists():
                return platform
    return ""


def _system(root: Path) -> str:
    """Return the ID of os-release."""
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        with contextlib.suppress(OSError, ValueError):
            for line in resolve(root, path).read_text().splitlines():
                key, _, value = line.partition("=")
                if key == "ID":
                    return "".join(shlex.split(value))
    return ""
