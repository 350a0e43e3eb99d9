"""gpuslice's scheduler running beside a control plane: kube-scheduler and the extender, alone, as
replicas of one Deployment side by side, or as another installation by mistake."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from contract import names
from scheduler.profiles import NAMES, Profiles, configuration
from simgpu.lab.controlplane import ControlPlane
from simgpu.lab.installation import Installation

OURS: Final = "gpuslice"


def running(
    plane: ControlPlane,
    name: str = OURS,
    served: Sequence[str] = NAMES,
    lease_s: int = 15,
    installation: str = "",
) -> Installation:
    """To be entered. installation: the name, if none is said. One that is not OURS has a
    kube-scheduler that leads without an election (the manifests' rights are for one Lease of
    kube-scheduler's, and one that may not renew its own ends itself), and the same Lease for us.
    lease_s: kube-scheduler's, which is waited out where one was killed."""
    installation = installation or name
    written = dict(configuration(Profiles(tuple(served), lease_s=lease_s)))
    if installation != OURS:
        written["leaderElection"] = {"leaderElect": False}
    return Installation(plane, written, name, installation=installation)


def replica(plane: ControlPlane, name: str, installation: str = OURS) -> Installation:
    """A pod of the Deployment; those of one installation elect one kube-scheduler among them."""
    return running(plane, name, (names.SCHEDULER_NAME,), lease_s=4, installation=installation)


def holds(replica: Installation) -> bool:
    return "this process" in replica.ask("/readyz")[1]
