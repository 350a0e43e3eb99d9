"""What `helm install` prints about the nodes of a cluster."""

from __future__ import annotations

import json

import pytest

from lab.cluster.controlplane import ControlPlane
from tests.support import run
from tools import chart, kubernetes

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
    kubeconfig = f"--kubeconfig={control_plane.kubeconfig('admin')}"
    words = ("install", "gpuslice", str(chart.CHART), "--dry-run=server", kubeconfig)
    done = run(kubernetes.ensure_helm(), *words, f"--namespace={chart.NAMESPACE}")
    control_plane.kubectl("delete", "node", *_RUNTIMES)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if "need containerd" in line)
    assert line.endswith(": old (containerd://1.7.24), other (cri-o://1.33.0)")
