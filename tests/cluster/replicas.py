"""Replicas of the scheduler's Deployment, side by side."""

from __future__ import annotations

from scheduler.profiles import Profiles, configuration
from simgpu.lab.controlplane import ControlPlane
from simgpu.lab.installation import Installation


def replica(plane: ControlPlane, name: str, installation: str = "here") -> Installation:
    """A pod of the Deployment; those of one installation elect one kube-scheduler among them."""
    written = dict(configuration(Profiles(lease_s=4)))
    if installation != "here":
        # The manifests' rights are to one Lease of kube-scheduler's; another one elects nobody.
        written["leaderElection"] = {"leaderElect": False}
    return Installation(plane, written, name, installation=installation)


def holds(replica: Installation) -> bool:
    return "this process" in replica.ask("/readyz")[1]
