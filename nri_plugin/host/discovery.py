"""Finds the host's directories that the agent uses, below where it sees the host's root.

In a pod the host's file system is mounted as a whole, at --host-root. So no directory has to exist
before the pod starts, and what appears later is seen. Every path is translated once, at the agent's
start (HostView). What the container runtime is told stays the host's path.
Reads directories only. Blocks: not for the event loop.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gpuslice.gpu.driver_root import HostView
from nri_plugin.host import bundle

NRI_SOCKET: Final = Path("/var/run/nri/nri.sock")
CDI_DIRS: Final = (Path("/etc/cdi"), Path("/var/run/cdi"))
DEVICE_PLUGINS: Final = Path("/var/lib/kubelet/device-plugins")
"""The same for every --root-dir of the kubelet."""
KUBELETS: Final = (
    Path("/var/lib/kubelet"),
    Path("/var/lib/k0s/kubelet"),
    Path("/var/snap/microk8s/common/var/lib/kubelet"),
)
"""The kubelet's own default, and the --root-dir that k0s and MicroK8s give it."""


def containerd_state(view: HostView) -> Path:
    """Return the state directory of the kubelet's containerd, as the host has it: the one whose
    containers of Kubernetes changed last; in a pod, the agent's own did. A Docker containerd beside
    it has none, and an earlier installation's do not change. If none has any yet, return the first
    that exists."""
    seen = {state: view.seen(state) for state in bundle.STATES}
    changed_s = {state: bundle.changed_s(path) for state, path in seen.items()}
    with_pods = [(time_s, state) for state, time_s in changed_s.items() if time_s is not None]
    # A directory that cannot be read counts as absent, which pathlib would raise.
    existing = (state for state, path in seen.items() if os.path.isdir(path))
    return max(with_pods)[1] if with_pods else next(existing, bundle.STATES[0])


def kubelet(view: HostView) -> Path:
    """Return the kubelet's --root-dir, as the host has it: the first that has its socket."""
    with_socket = (k for k in KUBELETS if view.seen(k / "pod-resources/kubelet.sock").exists())
    return next(with_socket, KUBELETS[0])


def missing(view: HostView, state: Path) -> Sequence[str]:
    """Return what no share can do without on this node, as text that names the path and what to do.
    state: containerd's state directory, as seen here."""
    if not (view.root / "proc").is_dir():
        return [
            f"{view.root}: must be the host's root directory: mount the host's / there, or set"
            " --host-root"
        ]
    if not state.is_dir():
        return [
            f"{view.on_host(state)} does not exist: containerd's state directory is not found; set"
            " containerd.stateDir (--containerd-state) to `state` in containerd's configuration;"
            f" searched: {', '.join(map(str, bundle.STATES))}"
        ]
    return []
