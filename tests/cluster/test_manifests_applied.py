"""The API server and kube-scheduler accept the manifests."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, Final

import pytest

from contract import names
from lab.cluster import manifests
from lab.cluster.controlplane import ControlPlane
from lab.cluster.manifests import KOORDINATOR, NAMES, named
from tests.cluster.installing import install
from tests.cluster.server import Server
from tests.support import until
from tools import chart

pytestmark = pytest.mark.cluster

Json = dict[str, Any]


def test_they_are_applied_in_one_go_and_again(installed: ControlPlane) -> None:
    """By `kubectl apply`, too. The scheduler would change the policies to Deny again."""
    said = installed.kubectl("apply", "--dry-run=server", "-f", chart.INSTALL)
    assert len(said.splitlines()) == len(manifests.objects())
    install(installed)


def test_the_schedulers_pod_needs_no_privilege(server: Server) -> None:
    """The namespace is privileged for the agents; the scheduler's pod would run in a restricted
    one."""
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    named_so = {"metadata": {"name": "restricted", "labels": label}}
    assert server.ask("POST", "/api/v1/namespaces", named_so).done
    try:
        template = named("Deployment", names.SCHEDULER_NAME)["spec"]["template"]
        spec = {key: value for key, value in template["spec"].items() if key[:8] != "priority"}
        path = "/api/v1/namespaces/restricted/pods?dryRun=All"
        answer = server.ask("POST", path, {"metadata": {"name": "p"}, "spec": spec})
        assert answer.done, answer.text
    finally:
        server.ask("DELETE", "/api/v1/namespaces/restricted")


def test_a_name_whose_own_scheduler_runs_here_is_not_served(
    control_plane: ControlPlane,
) -> None:
    """Helm looks into the cluster; without access to it, the name is served."""
    served = f"--set=schedulerNames={{{','.join(NAMES)}}}"
    connected = ("--dry-run=server", f"--kubeconfig={control_plane.kubeconfig()}")
    pods = "/api/v1/namespaces/default/pods"
    running = {"name": "main", "image": "koordinator-sh/koord-scheduler:v1.6.0"}
    pod = {"metadata": {"name": "koord-scheduler-1"}, "spec": {"containers": [running]}}
    assert chart.render(served, *connected)
    with Server(control_plane) as server:
        assert server.ask("POST", pods, pod).done
    try:
        with pytest.raises(chart.ChartError) as refused:
            chart.render(served, *connected)
        assert (
            "schedulerNames: invalid value koord-scheduler: must be served by one scheduler, and"
            " pod default/koord-scheduler-1 runs its own; stop that pod, or omit the name"
        ) in str(refused.value)
        assert chart.render(served) and chart.render(*connected)
    finally:
        with Server(control_plane) as server:
            server.ask("DELETE", f"{pods}/koord-scheduler-1?gracePeriodSeconds=0")


KOORDLETS_DEVICE: Final[Json] = {
    "apiVersion": names.DEVICE_API_VERSION,
    "kind": names.DEVICE_KIND,
    "metadata": {"name": "of-koordlet", "labels": {"node.koordinator.sh/gpu-model": "A100"}},
    "spec": {
        "devices": [
            {
                "type": "gpu",
                "id": "GPU-8c25ea37",
                "minor": 0,
                "moduleID": 3,
                "health": False,
                "labels": {"slot": "1"},
                "resources": {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory": 5},
                "topology": {
                    "socketID": -1,
                    "nodeID": 0,
                    "pcieID": "pci0000:3a",
                    "busID": "0000:3b:00.0",
                },
                "conditions": [
                    {
                        "type": "Healthy",
                        "status": "False",
                        "reason": "Xid79",
                        "message": "Xid error detected on device, error code: 79",
                        "lastTransitionTime": "2026-01-01T00:00:00Z",
                    }
                ],
            },
            {
                "type": "rdma",
                "id": "0000:1f:00.0",
                "minor": 1,
                "health": True,
                "vfGroups": [
                    {"labels": {"a": "b"}, "vfs": [{"minor": 2, "busID": "0000:1f:00.2"}]}
                ],
                "ofANewerKoordinator": {"kept": True},
            },
        ]
    },
    "status": {"allocations": [{"type": "gpu", "entries": [{"name": "p", "minors": [0]}]}]},
}
"""All fields of Koordinator's own definition."""


def test_what_koordinators_agent_writes_is_kept_whole(server: Server) -> None:
    path = f"/apis/{names.DEVICE_API_VERSION}/{names.DEVICE_PLURAL}"
    answer = server.ask("POST", f"{path}?fieldValidation=Strict", KOORDLETS_DEVICE)
    try:
        assert answer.done, answer.text
        read = server.ask("GET", f"{path}/of-koordlet").body
        assert (read["spec"], read["status"]) == (
            KOORDLETS_DEVICE["spec"],
            KOORDLETS_DEVICE["status"],
        )
    finally:
        server.ask("DELETE", f"{path}/of-koordlet")


@pytest.mark.parametrize(
    ("field", "value"),
    [("health", "yes"), ("minor", "0"), ("resources", {"a": [1]}), ("topology", {"nodeID": 0})],
)
def test_what_no_reader_could_read_is_refused(server: Server, field: str, value: Any) -> None:
    device = copy.deepcopy(KOORDLETS_DEVICE)
    device["spec"]["devices"][0][field] = value
    path = f"/apis/{names.DEVICE_API_VERSION}/{names.DEVICE_PLURAL}"
    answer = server.ask("POST", path, device)
    assert (answer.status, f"spec.devices[0].{field}" in answer.text) == (422, True), answer.body


# --- kube-scheduler


def test_kube_scheduler_takes_the_configuration_under_the_manifests_own_rights(
    installed: ControlPlane, server: Server, tmp_path: Path
) -> None:
    """Two replicas: one leads, by its Lease; the other takes over when the first is killed. While
    the extender is unavailable, no pod is bound without it. None of their requests is forbidden."""
    config = tmp_path / "kube-scheduler.yaml"
    config.write_text(json.dumps(manifests.configuration(NAMES, lease_s=4)))
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases"
    lease = f"{leases}/{names.LEASE_KUBE_SCHEDULER}"
    pods = "/api/v1/namespaces/default/pods"
    kubeconfig = installed.kubeconfig("scheduler")

    def holder() -> str:
        return str(server.ask("GET", lease).body.get("spec", {}).get("holderIdentity", ""))

    def condition() -> str:
        status = server.ask("GET", f"{pods}/waits").body.get("status", {})
        return str([each.get("message", "") for each in status.get("conditions", ())])

    node = {"capacity": {"cpu": "4", "memory": "8Gi", "pods": "10"}}
    assert server.ask(
        "POST", "/api/v1/nodes", {"metadata": {"name": "n-free"}, "status": node}
    ).done
    first = installed.start_kube_scheduler(config, kubeconfig, "kube-scheduler-1")
    second = None
    try:
        until(lambda: holder() != "", "one leads")
        before = holder()
        second = installed.start_kube_scheduler(config, kubeconfig, "kube-scheduler-2")
        container = {"name": "main", "image": "none"}
        spec = {"schedulerName": KOORDINATOR, "containers": [container]}
        assert server.ask("POST", pods, {"metadata": {"name": "waits"}, "spec": spec}).done
        until(lambda: "127.0.0.1:9444" in condition(), "the pod waits for the extender")
        first.kill()
        until(lambda: holder() not in ("", before), "the other one leads")
        for process in (first, second):
            assert "forbidden" not in process.log.read_text()
        assert "nodeName" not in server.ask("GET", f"{pods}/waits").body["spec"]
    finally:
        for process in filter(None, (first, second)):
            process.kill()
        server.ask("DELETE", f"{pods}/waits?gracePeriodSeconds=0")
        server.ask("DELETE", "/api/v1/nodes/n-free")
