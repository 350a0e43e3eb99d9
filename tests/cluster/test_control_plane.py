"""The control plane that the cluster tests stand on: it comes up, it asks who one is, it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from simgpu.lab.controlplane import ControlPlane, ControlPlaneError
from tests.cluster.waiting import until

pytestmark = pytest.mark.cluster

ON_NODE = "authentication.kubernetes.io/node-name"
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p"},
    "spec": {"containers": [{"name": "c", "image": "none"}]},
}
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "smoke"},
    "status": {
        "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"},
        "capacity": {"cpu": "4", "memory": "8Gi", "pods": "10"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}


def test_a_stock_kube_scheduler_binds_a_pod(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.kubectl("create", "-f", "-", given=json.dumps(NODE))
    scheduler = control_plane.start_kube_scheduler()
    try:
        control_plane.kubectl("create", f"-n={namespace}", "-f", "-", given=json.dumps(POD))
        path = ("get", "pod", "p", f"-n={namespace}", "-o=jsonpath={.spec.nodeName}")
        until(lambda: control_plane.kubectl(*path) == "smoke", "the pod is bound")
    finally:
        scheduler.kill()
        control_plane.kubectl("delete", "node", "smoke")


def test_a_user_is_who_his_kubeconfig_says(control_plane: ControlPlane) -> None:
    def name(user: str) -> str:
        said = control_plane.kubectl("auth", "whoami", "-o=json", user=user)
        return str(json.loads(said)["status"]["userInfo"]["username"])

    assert name("admin") == "admin"
    assert name("kube-scheduler") == "system:kube-scheduler"
    assert name("scheduler") == "system:serviceaccount:gpuslice-system:gpuslice-scheduler"
    with pytest.raises(ControlPlaneError, match='User "tenant" cannot list resource "nodes"'):
        control_plane.kubectl("get", "nodes", user="tenant")


def test_a_service_account_has_a_real_token(control_plane: ControlPlane, namespace: str) -> None:
    def who(kubeconfig: Path) -> Any:
        whoami = [control_plane.programs.kubectl, f"--kubeconfig={kubeconfig}", "auth", "whoami"]
        command = [*map(str, whoami), "-o=json"]
        said = subprocess.run(command, text=True, capture_output=True, check=True).stdout
        return json.loads(said)["status"]["userInfo"]

    control_plane.kubectl("create", "serviceaccount", "robot", f"-n={namespace}")
    anywhere = who(control_plane.service_account_kubeconfig(namespace, "robot"))
    assert anywhere["username"] == f"system:serviceaccount:{namespace}:robot"
    assert f"system:serviceaccounts:{namespace}" in anywhere["groups"]
    assert ON_NODE not in anywhere["extra"]
    control_plane.kubectl("create", "-f", "-", given=json.dumps(NODE))
    try:
        there = who(control_plane.service_account_kubeconfig(namespace, "robot", "smoke"))
        assert there["extra"][ON_NODE] == ["smoke"]
    finally:
        control_plane.kubectl("delete", "node", "smoke")


_OWNER = """
import sys, time
from pathlib import Path
from simgpu.lab.controlplane import ControlPlane
plane = ControlPlane(Path(sys.argv[1]))
plane.start()
plane.start_kube_scheduler()
print(plane._etcd.pid, plane._apiserver.pid, plane._schedulers[0].pid, flush=True)
time.sleep(600)
"""


def test_all_of_it_ends_with_an_owner_who_is_killed(tmp_path: Path) -> None:
    directory = tmp_path / "owned"
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(directory)], stdout=subprocess.PIPE, text=True
    )
    with owner:
        assert owner.stdout is not None
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        assert len(pids) == 3
        owner.kill()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "all have ended")
    until(lambda: not directory.exists(), "their directory is removed")


def test_a_restarted_api_server_has_what_it_had(
    control_plane: ControlPlane, namespace: str
) -> None:
    control_plane.kubectl("create", "configmap", "kept", f"-n={namespace}")
    before = control_plane.apiserver.pid
    control_plane.restart_apiserver()
    assert control_plane.apiserver.pid != before
    control_plane.kubectl("get", "configmap", "kept", f"-n={namespace}")


def test_a_port_that_another_has_is_not_taken_for_ours(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    """His etcd would answer us, and two API servers would write there."""
    his = int(control_plane._etcd_url.rpartition(":")[2])
    ours = ControlPlane(tmp_path / "ours")
    ours.directory.mkdir()
    ours._write_credentials()
    with pytest.raises(ControlPlaneError, match="address already in use"):
        ours._start_etcd(his)
    tried: list[int] = []

    def start(port: int) -> str:
        tried.append(port)
        return ours._start_etcd(port if len(tried) > 1 else his)

    url = ours._on_a_free_port(start)
    assert url.endswith(f":{tried[1]}")
    ours.stop()
