"""Finds the host's directories that the agent uses.

In a pod the host's whole file system is mounted, at --host-root. Therefore no directory has to
exist before the pod starts. At its start the agent converts every path once to the path at which
the pod sees it (HostView). The container runtime still gets the host's paths.
Reads directories only. Blocks: do not call it on the event loop.
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
"""The kubelet's directory of device plugins, the same for every --root-dir."""
KUBELETS: Final = (
    Path("/var/lib/kubelet"),
    Path("/var/lib/k0s/kubelet"),
    Path("/var/snap/microk8s/common/var/lib/kubelet"),
)
"""Values of the kubelet's --root-dir: the default, and those that k0s and MicroK8s set."""


def containerd_state(view: HostView) -> Path:
    """Return the host's path of the state directory of the kubelet's containerd.

    It is the directory in which a container of Kubernetes was last created or removed, for example
    the agent's own. Docker's containerd has no such containers. In an earlier installation's
    directory they no longer change. If no directory has any, return the first that exists.
    """
    seen = {state: view.seen(state) for state in bundle.STATES}
    changed_s = {state: bundle.changed_s(path) for state, path in seen.items()}
    with_pods = [(time_s, state) for state, time_s in changed_s.items() if time_s is not None]
    # A directory that cannot be read counts as absent. Path.is_dir would raise an error.
    existing = (state for state, path in seen.items() if os.path.isdir(path))
    return max(with_pods)[1] if with_pods else next(existing, bundle.STATES[0])


def kubelet(view: HostView) -> Path:
    """Return the host's path of the kubelet's --root-dir: the first with the kubelet's socket."""
    with_socket = (k for k in KUBELETS if view.seen(k / "pod-resources/kubelet.sock").exists())
    return next(with_socket, KUBELETS[0])


def missing(view: HostView, state: Path) -> Sequence[str]:
    """Return text about missing directories that every share needs: the path, and what to do.
    state: containerd's state directory, at the path at which this process sees it."""
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
