"""gpuslice's scheduler running beside a control plane: kube-scheduler and the extender."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from scheduler.profiles import NAMES, Profiles, configuration
from simgpu.lab.controlplane import ControlPlane
from simgpu.lab.installation import Installation

_FIRST: Final = "gpuslice"


def running(
    plane: ControlPlane,
    name: str = _FIRST,
    served: Sequence[str] = NAMES,
    lease_s: int = 15,
) -> Installation:
    """To be entered. Another name: another installation, whose kube-scheduler leads without an
    election (the manifests' rights are for one Lease of kube-scheduler's, and one that may not
    renew its own ends itself), and the same Lease for us. lease_s: kube-scheduler's, which is
    waited out where one was killed."""
    written = dict(configuration(Profiles(tuple(served), lease_s=lease_s)))
    if name != _FIRST:
        written["leaderElection"] = {"leaderElect": False}
    return Installation(plane, written, name)
