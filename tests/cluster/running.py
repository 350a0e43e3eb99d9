"""gpuslice's scheduler running beside a control plane: kube-scheduler and the extender."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.profiles import NAMES, Profiles, configuration
from simgpu.lab.controlplane import ControlPlane
from simgpu.lab.installation import Installation


def running(
    plane: ControlPlane,
    name: str = "gpuslice",
    served: Sequence[str] = NAMES,
    lease_s: int = 15,
) -> Installation:
    """To be entered. Another name: another installation, with a Lease of its own for its
    kube-scheduler, and the same one for us. lease_s: kube-scheduler's, which is waited out where
    one was killed."""
    written = dict(configuration(Profiles(tuple(served), lease_s=lease_s)))
    election = {**written["leaderElection"], "resourceName": f"{name}-kube-scheduler"}
    return Installation(plane, {**written, "leaderElection": election}, name)
