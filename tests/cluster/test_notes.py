"""What `helm install` prints about the nodes of a cluster."""

from __future__ import annotations

import json

import pytest

from lab.cluster.controlplane import ControlPlane
from tests.cluster.programs import helm
from tools import chart

pytestmark = pytest.mark.cluster

_RUNTIMES = {
    "old": "containerd://1.7.24",
    "newer": "containerd://1.7.26-k3s1",
    "two": "containerd://2.2.1",
    "other": "cri-o://1.33.0",
    "unknown": "",
    "without-gpu": "containerd://1.6.20",
}


def test_the_notes_name_nodes_whose_runtime_is_not_served(control_plane: ControlPlane) -> None:
    for name, runtime in _RUNTIMES.items():
        labels = {} if name == "without-gpu" else {"nvidia.com/gpu.present": "true"}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        control_plane.kubectl("create", "-f", "-", given=json.dumps(node))
        status = json.dumps({"status": {"nodeInfo": {"containerRuntimeVersion": runtime}}})
        control_plane.kubectl("patch", "node", name, "--subresource=status", f"--patch={status}")
    said = helm(control_plane, "install", "gpuslice", chart.CHART, "--dry-run=server")
    control_plane.kubectl("delete", "node", *_RUNTIMES)
    (line,) = (line for line in said.splitlines() if "need containerd" in line)
    assert line.endswith(": old (containerd://1.7.24), other (cri-o://1.33.0)")
