"""The API server accepts the manifests, and Helm reads the cluster that they are applied to."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from gpuslice.contract import names
from lab.cluster import manifests
from lab.cluster.controlplane import ControlPlane
from lab.cluster.manifests import KOORDINATOR, NAMES, named
from tests.chart.rendering import EVERYTHING
from tests.cluster.installing import PROBES
from tests.cluster.programs import helm, run_in_pod
from tests.cluster.server import Json, Server
from tests.requests.pods import HALF, asking, pod
from tools import chart

pytestmark = pytest.mark.cluster

_CONNECTED: Final = ("--dry-run=server", "--take-ownership")
"""Options with which Helm reads the cluster. kubectl has installed the objects there."""
_DEFINED_ELSEWHERE: Final = ("monitoring.coreos.com/v1", "kai.scheduler/v1")
_NODES: Final = "/api/v1/nodes"
_PODS: Final = "/api/v1/namespaces/default/pods"


@pytest.mark.parametrize("options", [[], [f"--values={EVERYTHING}"]], ids=["default", "everything"])
def test_the_api_server_accepts_what_helm_installs(
    installed: ControlPlane, options: list[str]
) -> None:
    """This includes Helm's hooks. Objects of Prometheus Operator and KAI are left out, because
    their definitions are not installed."""
    rendered = [each for each in yaml.safe_load_all(chart.render(*options)) if each]
    known = [each for each in rendered if each["apiVersion"] not in _DEFINED_ELSEWHERE]
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": known})
    strictly = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-")
    said = installed.try_kubectl(*strictly, given=listed)
    assert (said.returncode, said.stderr) == (0, "")
    assert len(said.stdout.splitlines()) == len(known)


# --- Pod Security Standards


def _of_chart(kind: str, name: str) -> Json:
    """Return the object's pod spec without priority class and service account, which the test's
    namespace lacks."""
    spec = named(kind, name)["spec"]["template"]["spec"]
    return {k: v for k, v in spec.items() if not k.startswith(("priority", "serviceAccount"))}


_CONFINED: Final = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
_SCHEDULER: Final = ("Deployment", names.SCHEDULER_NAME)
_AGENT: Final = ("DaemonSet", names.AGENT)
_SECURED: Final[dict[str, tuple[Json | tuple[str, str], str, bool]]] = {
    "the scheduler": (_SCHEDULER, "restricted", True),
    "an agent": (_AGENT, "privileged", True),
    # Talos enforces `baseline` in a namespace that lacks the label for `privileged`.
    "an agent elsewhere": (_AGENT, "baseline", False),
    "a share": (pod(asking(HALF, securityContext=_CONFINED))["spec"], "restricted", True),
    "a share that is not confined": (pod(asking(HALF))["spec"], "restricted", False),
}


@pytest.mark.parametrize("case", _SECURED)
def test_a_pod_needs_this_pod_security_standard(server: Server, case: str) -> None:
    what, level, admitted = _SECURED[case]
    spec = what if isinstance(what, dict) else _of_chart(*what)
    label = {"pod-security.kubernetes.io/enforce": level}
    space = {"metadata": {"name": f"of-{level}", "labels": label}}
    server.ask("POST", "/api/v1/namespaces", space)
    path = f"/api/v1/namespaces/of-{level}/pods?dryRun=All"
    answer = server.ask("POST", path, {"metadata": {"name": "p"}, "spec": spec})
    assert answer.done == admitted, answer.text
    assert admitted or "violates PodSecurity" in answer.text


# --- what Helm and its hooks read

_LABELLED: Final = {"key": names.LABEL_QUEUES, "operator": "In", "values": ["true"]}


def test_helms_test_names_what_is_missing(
    installed: ControlPlane, server: Server, tmp_path: Path
) -> None:
    program = (chart.CHART / "files/check.py").read_text()
    pods = f"/api/v1/namespaces/{names.NAMESPACE}/pods"

    def check() -> tuple[int, list[str]]:
        done = run_in_pod(installed, tmp_path, installed.token(), program, "0.1.0", names.AGENT)
        assert done.stderr == ""
        return done.returncode, done.stdout.splitlines()

    code, lines = check()
    assert code == 1 and lines[-1] == "failed"
    assert "gpuslice-agent: no pods; no node has a label of its affinity and nodeSelector" in lines
    assert "run the doctor on a node with a GPU" in lines[-2]
    version = "app.kubernetes.io/version"
    agent = pod(name="agent-1", labels={names.LABEL_NAME: names.AGENT, version: "0.0.9"})
    totals = {names.RESOURCE_GPU: "100"}
    offering = {"capacity": totals, "allocatable": totals}
    node = {"metadata": {"name": "n-offering"}, "status": offering}
    with server.made(pods, agent) as path, server.made(_NODES, node):
        assert check()[1] == [
            "pod agent-1: not ready; see kubectl --namespace gpuslice-system describe pod agent-1",
            "pod agent-1: invalid version 0.0.9: must be 0.1.0; wait for the rollout",
            "failed",
        ]
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        assert server.patch(f"{path}/status", ready).done
        assert server.patch(path, {"metadata": {"labels": {version: "0.1.0"}}}).done
        assert check() == (0, ["ok"])


@pytest.mark.parametrize(
    ("selector", "failure", "group", "warns"),
    [
        ({"matchLabels": {names.LABEL_QUEUES: "true"}}, "Fail", "", False),
        ({"matchExpressions": [_LABELLED]}, "Fail", "apps", False),
        ({"matchLabels": {"other": "true"}}, "Fail", "", True),
        ({}, "Ignore", "", False),
        ({}, "Fail", "kueue.x-k8s.io", False),
    ],
)
def test_helms_test_warns_of_webhooks_of_kueue_in_all_namespaces(
    installed: ControlPlane,
    server: Server,
    tmp_path: Path,
    selector: Json,
    failure: str,
    group: str,
    warns: bool,
) -> None:
    program = (chart.CHART / "files/check.py").read_text()
    rule = {"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"]}
    hook = {
        "name": "mpod.kb.io",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": failure,
        "namespaceSelector": selector,
        "clientConfig": {"service": {"namespace": "kueue-system", "name": "none"}},
        "rules": [{**rule, "resources": ["nothing"]}],
    }
    raw = {"metadata": {"name": "kueue-mutating-webhook-configuration"}, "webhooks": [hook]}
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    with server.made(path, raw):
        done = run_in_pod(installed, tmp_path, installed.token(), program, "0.1.0", "queues")
    *lines, last = done.stdout.splitlines()
    assert (done.returncode, last) == (0, "ok")
    named = "warning: mutatingwebhookconfiguration kueue-mutating-webhook-configuration: mpod.kb.io"
    assert [line.startswith(named) for line in lines] == [True] * warns


def test_the_notes_say_that_no_node_is_known_to_have_a_gpu_and_name_taints(
    installed: ControlPlane, server: Server
) -> None:
    def notes() -> str:
        said = helm(installed, "install", "other", chart.CHART, *_CONNECTED)
        return said.partition("\nNOTES:\n")[2]

    node = {"metadata": {"name": "n-1", "labels": {"kubernetes.io/os": "linux"}}}
    with server.made(_NODES, node) as path:
        text = notes()
        assert "NO NODE HAS SUCH A LABEL" in text and "have taints" not in text
        assert "kubectl label node NODE nvidia.com/gpu.present=true" in text
        assert "kubernetes.azure.com/accelerator, nvidia.com/gpu.present" in text
        gke = {"metadata": {"labels": {"cloud.google.com/gke-accelerator": "nvidia-l4"}}}
        taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
        own = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
        assert server.patch(path, {**gke, "spec": {"taints": [taint, own]}}).done
        text = notes()
        assert "NO NODE" not in text
        assert "must tolerate (docs/install.md): nvidia.com/gpu=present:NoSchedule\n" in text


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
    """Helm searches the cluster for that scheduler. Without a cluster the name is served."""
    connected = (*_CONNECTED, f"--kubeconfig={installed.kubeconfig()}")
    theirs = pod({"name": "main", "image": image}, name="theirs", labels={"app": label})
    with server.made(_PODS, theirs):
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


def test_what_the_scheduler_put_in_force_stays_in_an_upgrade_and_a_rollback(
    installed: ControlPlane,
) -> None:
    """Helm finds the binding's Deny, and an upgrade keeps it. A rollback, like a second apply of
    install.yaml, adds Audit to it."""
    rendered = chart.render(*_CONNECTED, f"--kubeconfig={installed.kubeconfig()}")
    found = [e for e in yaml.safe_load_all(rendered) if e and e["kind"] == manifests.BINDING]
    actions = {each["metadata"]["name"]: each["spec"]["validationActions"] for each in found}
    never = {"gpuslice-resource-names": ["Warn"]}
    assert actions == {name: ["Deny"] for name in actions} | never
    assert set(PROBES) < set(actions)

    audits = named(manifests.BINDING, "gpuslice-requests")
    of_it = (manifests.BINDING, "gpuslice-requests")
    denies = ("patch", *of_it, "--type=merge", '-p={"spec":{"validationActions":["Deny"]}}')
    try:
        installed.apply_json(audits)
        installed.kubectl(*denies)  # as the scheduler does
        installed.apply_json(audits)
        live = json.loads(installed.kubectl("get", *of_it, "-o=json"))
        assert set(live["spec"]["validationActions"]) == {"Audit", "Deny"}
    finally:
        installed.kubectl(*denies)


# --- Koordinator's Devices


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
"""A Device with every field of Koordinator's own definition."""


def test_what_koordinators_agent_writes_is_kept_whole(server: Server) -> None:
    answer = server.ask("POST", f"{_DEVICES}?fieldValidation=Strict", KOORDLETS_DEVICE)
    assert answer.done, answer.text
    read = server.get(f"{_DEVICES}/of-koordlet")
    server.remove(f"{_DEVICES}/of-koordlet")
    assert {key: read[key] for key in ("spec", "status")}.items() <= KOORDLETS_DEVICE.items()


@pytest.mark.parametrize(
    ("field", "value"),
    [("health", "yes"), ("minor", "0"), ("resources", {"a": [1]}), ("topology", {"nodeID": 0})],
)
def test_what_no_reader_could_read_is_refused(server: Server, field: str, value: Any) -> None:
    device = copy.deepcopy(KOORDLETS_DEVICE)
    device["spec"]["devices"][0][field] = value
    answer = server.ask("POST", _DEVICES, device)
    assert (answer.status, f"spec.devices[0].{field}" in answer.text) == (422, True), answer.body
