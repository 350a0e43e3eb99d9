"""gpuslice's scheduler running beside a control plane: kube-scheduler and the extender, alone, as
replicas of one Deployment, or as another installation by mistake."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from contract import names
from lab.cluster.controlplane import ControlPlane
from lab.cluster.installation import Installation
from lab.cluster.manifests import NAMES, configuration

OURS: Final = "gpuslice"


def running(
    plane: ControlPlane,
    name: str = OURS,
    served: Sequence[str] = NAMES,
    lease_s: int = 15,
    installation: str = "",
    nominate: str = "backlog",
) -> Installation:
    """A context manager. installation: its name. For a name other than OURS, kube-scheduler leads
    without an election, because the manifests' rights are for one Lease of kube-scheduler's, and a
    kube-scheduler that cannot renew its own exits; the extender's Lease is the same. lease_s: of
    kube-scheduler's Lease, which must expire after a kill. nominate: by default not in fleets as
    small as the tests'."""
    installation = installation or name
    written = configuration(served, lease_s)
    if installation != OURS:
        written["leaderElection"] = {"leaderElect": False}
    options = (f"--nominate={nominate}",)
    return Installation(plane, written, name, installation=installation, arguments=options)


def replica(
    plane: ControlPlane, name: str, installation: str = OURS, nominate: str = "backlog"
) -> Installation:
    """A pod of the Deployment; the replicas of one installation elect one kube-scheduler."""
    served = (names.SCHEDULER_NAME,)
    return running(plane, name, served, 4, installation, nominate)


def holds(replica: Installation) -> bool:
    return "this process" in replica.ask("/readyz")[1]
