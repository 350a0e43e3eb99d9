"""Remains of gpuslice's installation, or its removal, in a cluster and on its node."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gpuslice.contract import names
from tests.e2e.whole import Whole
from tests.support import until

_OF_PODS: Final = (
    *("/var/lib/kubelet/pods/", "/var/lib/cni/", "/var/log/"),
    *("/run/containerd/", "/run/netns/", "/var/lib/kubelet/device-plugins/kubelet"),
)
"""Directories of the kubelet and of containerd, which change with every pod."""
_SYSTEM: Final = f"--namespace={names.NAMESPACE}"


def files(whole: Whole) -> Sequence[str]:
    """Files of the node's that it did not have when the lab made it, but those of pods."""
    layers = Path(whole.state["directory"]) / "root"
    found = []
    for layer in layers.glob("layer-of-*"):
        place = layer.name.removeprefix("layer-of").replace("-", "/")
        for directory, _, inside in os.walk(layer / "upper"):
            where = place + directory.removeprefix(str(layer / "upper"))
            found += [f"{where}/{name}" for name in inside if not _is_gone(directory, name)]
    return sorted(each for each in found if not each.startswith(_OF_PODS))


def _is_gone(directory: str, name: str) -> bool:
    """Whether it is an overlay's mark of a file that was deleted."""
    return stat.S_ISCHR(os.lstat(os.path.join(directory, name)).st_mode)


def new_files(whole: Whole, before: Sequence[str]) -> Sequence[str]:
    return sorted({*files(whole)} - {*before})


def is_clean(whole: Whole, before: Sequence[str], of_hooks: bool = True) -> None:
    """The cluster still has the definition of Devices, and the node nothing of gpuslice.
    of_hooks: also what only the chart's hooks remove."""
    node = json.loads(whole.kubectl("get", "node", whole.state["node"], "-o", "json"))
    for place in ("capacity", "allocatable"):
        assert not [key for key in node["status"][place] if "koordinator" in key]
    assert not [key for key in node["metadata"]["labels"] if "gpuslice.io" in key]
    kinds = "validatingadmissionpolicies,validatingadmissionpolicybindings,clusterroles"
    kinds += ",clusterrolebindings,priorityclasses,flowschemas,prioritylevelconfigurations"
    made = whole.kubectl("get", kinds, "--output=name").split()
    assert {each.rpartition("/")[2] for each in made if "gpuslice" in each} <= {"gpuslice-writer"}
    in_system = "deployments,daemonsets,jobs,serviceaccounts,configmaps,roles"
    in_system += ",leases" * of_hooks
    assert "gpuslice" not in whole.kubectl("get", in_system, _SYSTEM, "--output=name")
    assert whole.kubectl("get", names.DEVICE_PLURAL, "--output=name") == ""
    until(lambda: not _pods_of_ours(whole), "its pods are gone")
    left = new_files(whole, before)
    assert not left, left


def _pods_of_ours(whole: Whole) -> str:
    return whole.kubectl("get", "pods", _SYSTEM, "--output=name")
