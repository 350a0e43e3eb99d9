"""The API server and kube-scheduler accept the manifests."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from gpuslice.contract import names
from lab.cluster import manifests
from lab.cluster.controlplane import ControlPlane
from lab.cluster.manifests import KOORDINATOR, NAMES, named
from tests.chart.rendering import EVERYTHING
from tests.cluster.admission.judging import DRY
from tests.cluster.installing import PROBES
from tests.cluster.server import MERGE_PATCH, Server
from tests.requests.pods import asking, container, pod
from tests.support import until
from tools import chart, kubernetes

pytestmark = pytest.mark.cluster

Json = dict[str, Any]

_CONNECTED: Final = ("--dry-run=server", "--take-ownership")
"""Helm reads the cluster's objects, which kubectl installed there."""
_DEFINED_ELSEWHERE: Final = ("monitoring.coreos.com/v1", "kai.scheduler/v1")
_ONE: Final = "gpuslice-requests"


@pytest.mark.parametrize("options", [[], [f"--values={EVERYTHING}"]], ids=["default", "everything"])
def test_the_api_server_accepts_what_helm_installs(
    installed: ControlPlane, options: list[str]
) -> None:
    """The hooks too, but for objects of Prometheus Operator and KAI, whose definitions are not
    here."""
    rendered = [each for each in yaml.safe_load_all(chart.render(*options)) if each]
    known = [each for each in rendered if each["apiVersion"] not in _DEFINED_ELSEWHERE]
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": known})
    strictly = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-")
    said = installed.try_kubectl(*strictly, given=listed)
    assert (said.returncode, said.stderr) == (0, "")
    assert len(said.stdout.splitlines()) == len(known)


@pytest.fixture(scope="module")
def restricted(server: Server) -> Iterator[str]:
    """The path of the pods of a namespace that enforces the Pod Security Standard."""
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    named_so = {"metadata": {"name": "restricted", "labels": label}}
    assert server.ask("POST", "/api/v1/namespaces", named_so).done
    yield "/api/v1/namespaces/restricted/pods?dryRun=All"
    server.ask("DELETE", "/api/v1/namespaces/restricted")


def test_the_schedulers_pod_needs_no_privilege(server: Server, restricted: str) -> None:
    """The namespace is privileged for the agents; the scheduler's pod would run in a restricted
    one."""
    template = named("Deployment", names.SCHEDULER_NAME)["spec"]["template"]
    spec = {key: value for key, value in template["spec"].items() if key[:8] != "priority"}
    answer = server.ask("POST", restricted, {"metadata": {"name": "p"}, "spec": spec})
    assert answer.done, answer.text


@pytest.mark.parametrize("level", ["baseline", "privileged"])
def test_the_agents_pod_needs_a_privileged_namespace(server: Server, level: str) -> None:
    """Talos enforces `baseline` in a namespace without this label."""
    label = {"pod-security.kubernetes.io/enforce": level}
    named_so = {"metadata": {"name": f"of-{level}", "labels": label}}
    assert server.ask("POST", "/api/v1/namespaces", named_so).done
    template = named("DaemonSet", "gpuslice-agent")["spec"]["template"]
    without = ("priority", "serviceAc")
    spec = {key: value for key, value in template["spec"].items() if not key.startswith(without)}
    path = f"/api/v1/namespaces/of-{level}"
    answer = server.ask("POST", f"{path}/pods{DRY}", {"metadata": {"name": "p"}, "spec": spec})
    assert answer.done == (level == "privileged"), answer.text
    assert answer.done or "violates PodSecurity" in answer.text
    server.ask("DELETE", path)


def test_a_tenants_pod_needs_no_privilege_for_a_share(server: Server, restricted: str) -> None:
    confined = {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    half = {names.RESOURCE_CORE: 50, names.RESOURCE_MEMORY_RATIO: 50}
    answer = server.ask("POST", restricted, pod(asking(half, securityContext=confined)))
    assert answer.done, answer.text
    refused = server.ask("POST", restricted, pod(asking(half)))
    assert "violates PodSecurity" in refused.text


def test_helms_test_names_what_is_missing(
    installed: ControlPlane, server: Server, tmp_path: Path
) -> None:
    (tmp_path / "ca.crt").write_bytes(installed.ca.read_bytes())
    (tmp_path / "token").write_text(installed.token())
    program = (chart.CHART / "files/check.py").read_text()
    program = program.replace("/var/run/secrets/kubernetes.io/serviceaccount", str(tmp_path))
    host, _, port = installed.server.removeprefix("https://").rpartition(":")
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    pods = f"/api/v1/namespaces/{names.NAMESPACE}/pods"

    def check() -> tuple[int, list[str]]:
        command = [sys.executable, "-", "0.1.0", "gpuslice-agent"]
        done = subprocess.run(command, input=program, env=environ, text=True, capture_output=True)
        assert done.stderr == ""
        return done.returncode, done.stdout.splitlines()

    code, lines = check()
    assert code == 1 and lines[-1] == "failed"
    assert "gpuslice-agent: no pods; no node has a label of its affinity and nodeSelector" in lines
    assert "run the doctor on a node with a GPU" in lines[-2]
    labels = {"app.kubernetes.io/name": "gpuslice-agent", "app.kubernetes.io/version": "0.0.9"}
    agent = pod(container(), name="agent-1", labels=labels)
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    offering = {"capacity": {names.RESOURCE_GPU: "100"}, "allocatable": {names.RESOURCE_GPU: "100"}}
    assert server.ask("POST", pods, agent).done
    node = {"metadata": {"name": "n-offering"}, "status": offering}
    assert server.ask("POST", "/api/v1/nodes", node).done
    try:
        assert check()[1] == [
            "pod agent-1: not ready; see kubectl --namespace gpuslice-system describe pod agent-1",
            "pod agent-1: invalid version 0.0.9: must be 0.1.0; wait for the rollout",
            "failed",
        ]
        ready = {"status": status}
        assert server.ask("PATCH", f"{pods}/agent-1/status", ready, MERGE_PATCH).done
        upgraded = {"metadata": {"labels": {"app.kubernetes.io/version": "0.1.0"}}}
        assert server.ask("PATCH", f"{pods}/agent-1", upgraded, MERGE_PATCH).done
        assert check() == (0, ["ok"])
    finally:
        server.ask("DELETE", f"{pods}/agent-1?gracePeriodSeconds=0")
        server.ask("DELETE", "/api/v1/nodes/n-offering")


def test_the_notes_say_that_no_node_is_known_to_have_a_gpu_and_name_taints(
    installed: ControlPlane, server: Server
) -> None:
    nodes, kubeconfig = "/api/v1/nodes", f"--kubeconfig={installed.kubeconfig()}"
    command = [
        str(kubernetes.ensure_helm()),
        "install",
        "other",
        str(chart.CHART),
        *_CONNECTED,
        kubeconfig,
    ]

    def notes() -> str:
        place = f"--namespace={names.NAMESPACE}"
        done = subprocess.run([*command, place], text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.partition("\nNOTES:\n")[2]

    node: Json = {"metadata": {"name": "n-1", "labels": {"kubernetes.io/os": "linux"}}}
    assert server.ask("POST", nodes, node).done
    try:
        text = notes()
        assert "NO NODE HAS SUCH A LABEL" in text and "have taints" not in text
        assert "kubectl label node NODE nvidia.com/gpu.present=true" in text
        assert "kubernetes.azure.com/accelerator, nvidia.com/gpu.present" in text
        gke = {"metadata": {"labels": {"cloud.google.com/gke-accelerator": "nvidia-l4"}}}
        taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
        own = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
        tainted = {**gke, "spec": {"taints": [taint, own]}}
        assert server.ask("PATCH", f"{nodes}/n-1", tainted, MERGE_PATCH).done
        text = notes()
        assert "NO NODE" not in text
        assert "must tolerate (docs/install.md): nvidia.com/gpu=present:NoSchedule\n" in text
    finally:
        server.ask("DELETE", f"{nodes}/n-1")


_SERVED: Final = f"schedulerNames={{{','.join(NAMES)}}}"


@pytest.mark.parametrize(
    ("setting", "image", "label"),
    [
        (_SERVED, "koordinator-sh/koord-scheduler:v1.6.0", ""),
        ("dialects.volcano.enabled=true", "volcanosh/vc-scheduler:v1.12.0", ""),
        ("global.gpuSharing=true", "ghcr.io/kai-scheduler/kai-scheduler/scheduler:v0.9.0", ""),
        ("global.gpuSharing=true", "registry:5000/kai@sha256:00", "kai-scheduler-default"),
        ("dialects.hami.enabled=true", "projecthami/hami:v2.7.0", "hami-scheduler"),
    ],
)
def test_a_name_or_dialect_whose_own_scheduler_runs_here_is_not_served(
    installed: ControlPlane, server: Server, setting: str, image: str, label: str
) -> None:
    """Helm looks into the cluster; without access to it, the name is served."""
    connected = (*_CONNECTED, f"--kubeconfig={installed.kubeconfig()}")
    pods = "/api/v1/namespaces/default/pods"
    metadata = {"name": "theirs", "labels": {"app": label} if label else {}}
    running = {"containers": [{"name": "main", "image": image}]}
    assert server.ask("POST", pods, {"metadata": metadata, "spec": running}).done
    try:
        with pytest.raises(chart.ChartError) as refused:
            chart.render(f"--set={setting}", *connected)
        field, _, value = setting.partition("=")
        value = KOORDINATOR if setting == _SERVED else value
        assert (
            f"{field}: invalid value {value}: must be served by one scheduler, and pod"
            " default/theirs runs its own; stop that pod, or"
        ) in str(refused.value)
        assert chart.render(*connected)
        assert chart.render(f"--set={setting}")
    finally:
        server.ask("DELETE", f"{pods}/theirs?gracePeriodSeconds=0")


def test_what_the_scheduler_put_in_force_stays_in_an_upgrade_and_a_rollback(
    installed: ControlPlane,
) -> None:
    """Helm finds Deny in an upgrade. A rollback applies Audit, as install.yaml does, beside it."""
    kubeconfig = f"--kubeconfig={installed.kubeconfig()}"
    rendered = yaml.safe_load_all(chart.render(*_CONNECTED, kubeconfig))
    found = [each for each in rendered if each and each["kind"] == manifests.BINDING]
    actions = {each["metadata"]["name"]: each["spec"]["validationActions"] for each in found}
    never = {"gpuslice-resource-names": ["Warn"]}
    assert actions == {name: ["Deny"] for name in actions} | never
    assert set(PROBES) < set(actions)

    (audits,) = (e for e in manifests.objects(manifests.BINDING) if e["metadata"]["name"] == _ONE)
    patch = ("patch", manifests.BINDING, _ONE, "--type=merge")
    try:
        installed.apply_json(audits)
        installed.kubectl(*patch, '-p={"spec":{"validationActions":["Deny"]}}')  # the scheduler
        installed.apply_json(audits)
        live = installed.kubectl("get", manifests.BINDING, _ONE, "-o=json")
        assert set(json.loads(live)["spec"]["validationActions"]) == {"Audit", "Deny"}
    finally:
        installed.kubectl(*patch, '-p={"spec":{"validationActions":["Deny"]}}')


_GPU: Final[Json] = {
    **{"type": "gpu", "id": "GPU-8c25ea37", "minor": 0, "moduleID": 3, "health": False},
    "labels": {"slot": "1"},
    "resources": {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory": 5},
    "topology": {"socketID": -1, "nodeID": 0, "pcieID": "pci0000:3a", "busID": "0000:3b:00.0"},
    "conditions": [
        {
            **{"type": "Healthy", "status": "False", "reason": "Xid79", "message": "Xid error"},
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ],
}
_RDMA: Final[Json] = {
    **{"type": "rdma", "id": "0000:1f:00.0", "minor": 1, "health": True},
    "vfGroups": [{"labels": {"a": "b"}, "vfs": [{"minor": 2, "busID": "0000:1f:00.2"}]}],
    "ofANewerKoordinator": {"kept": True},
}
_DEVICES: Final = f"/apis/{names.DEVICE_API_VERSION}/{names.DEVICE_PLURAL}"
KOORDLETS_DEVICE: Final[Json] = {
    "apiVersion": names.DEVICE_API_VERSION,
    "kind": names.DEVICE_KIND,
    "metadata": {"name": "of-koordlet", "labels": {"node.koordinator.sh/gpu-model": "A100"}},
    "spec": {"devices": [_GPU, _RDMA]},
    "status": {"allocations": [{"type": "gpu", "entries": [{"name": "p", "minors": [0]}]}]},
}
"""All fields of Koordinator's own definition."""


def test_what_koordinators_agent_writes_is_kept_whole(server: Server) -> None:
    answer = server.ask("POST", f"{_DEVICES}?fieldValidation=Strict", KOORDLETS_DEVICE)
    try:
        assert answer.done, answer.text
        read = server.ask("GET", f"{_DEVICES}/of-koordlet").body
        assert [read[key] for key in ("spec", "status")] == [
            KOORDLETS_DEVICE[key] for key in ("spec", "status")
        ]
    finally:
        server.ask("DELETE", f"{_DEVICES}/of-koordlet")


@pytest.mark.parametrize(
    ("field", "value"),
    [("health", "yes"), ("minor", "0"), ("resources", {"a": [1]}), ("topology", {"nodeID": 0})],
)
def test_what_no_reader_could_read_is_refused(server: Server, field: str, value: Any) -> None:
    device = copy.deepcopy(KOORDLETS_DEVICE)
    device["spec"]["devices"][0][field] = value
    answer = server.ask("POST", _DEVICES, device)
    assert (answer.status, f"spec.devices[0].{field}" in answer.text) == (422, True), answer.body


def test_kube_scheduler_takes_the_configuration_under_the_manifests_own_rights(
    installed: ControlPlane, server: Server, tmp_path: Path
) -> None:
    """While the extender is unavailable, no pod is bound without it. No request is forbidden."""
    config = tmp_path / "kube-scheduler.yaml"
    config.write_text(json.dumps(manifests.configuration(NAMES, lease_s=4)))
    pods = "/api/v1/namespaces/default/pods"

    def condition() -> str:
        status = server.ask("GET", f"{pods}/waits").body.get("status", {})
        return str([each.get("message", "") for each in status.get("conditions", ())])

    node = {"capacity": {"cpu": "4", "memory": "8Gi", "pods": "10"}}
    assert server.ask(
        "POST", "/api/v1/nodes", {"metadata": {"name": "n-free"}, "status": node}
    ).done
    started = installed.start_kube_scheduler(config, installed.kubeconfig("scheduler"), "alone")
    try:
        waits = pod(container(), scheduler=KOORDINATOR, name="waits")
        assert server.ask("POST", pods, waits).done
        until(lambda: "127.0.0.1:9444" in condition(), "the pod waits for the extender")
        assert "forbidden" not in started.log.read_text()
        assert "nodeName" not in server.ask("GET", f"{pods}/waits").body["spec"]
    finally:
        started.kill()
        server.ask("DELETE", f"{pods}/waits?gracePeriodSeconds=0")
        server.ask("DELETE", "/api/v1/nodes/n-free")
