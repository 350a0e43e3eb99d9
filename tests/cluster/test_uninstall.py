"""`python -m scheduler uninstall` on a real API server: what it removes, and in which order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import pytest
import yaml

from gpuslice.contract import names
from gpuslice.contract.dialects import VOLCANO_MEMORY
from lab.cluster.controlplane import ControlPlane
from tests.cluster.admission.judging import MUTATES, SWITCHES, policies
from tests.cluster.server import MERGE_PATCH, Json, Server
from tests.requests.pods import container, pod
from tests.scheduler.commands import Done, run
from tools import chart

pytestmark = pytest.mark.cluster

_NODES: Final = "/api/v1/nodes"
_DEVICES: Final = f"/apis/{names.DEVICE_API_VERSION}/{names.DEVICE_PLURAL}"
_LEASES: Final = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases"
_SETS: Final = f"/apis/apps/v1/namespaces/{names.NAMESPACE}/daemonsets"
_PODS: Final = f"/api/v1/namespaces/{names.NAMESPACE}/pods"
_TENANTS: Final = "/api/v1/namespaces/default/pods"
_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
_POLICIES: Final = f"{_ADMISSION}/validatingadmissionpolicies"
_BINDINGS: Final = f"{_ADMISSION}/validatingadmissionpolicybindings"
_DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_DEFINITION: Final = "devices.scheduling.koordinator.sh"
_OURS: Final = {names.LABEL_PART_OF: names.PART_OF}
_GPU: Final = {
    **{"type": names.DEVICE_TYPE_GPU, "id": "GPU-1", "minor": 0, "health": True},
    "resources": {names.RESOURCE_MEMORY: str(40 << 30)},
}
_RDMA: Final = {"type": "rdma", "id": "0000:1f:00.2", "minor": 0, "health": True, "resources": {}}
_TOTALS: Final = {
    names.RESOURCE_CORE: "100",
    names.RESOURCE_MEMORY: str(40 << 30),
    VOLCANO_MEMORY: str(40 << 10),
}


class Cluster:
    """A cluster with objects that gpuslice, Koordinator, the kubelet and an operator wrote."""

    def __init__(self, plane: ControlPlane, server: Server) -> None:
        self.plane, self.server = plane, server
        self._made: list[str] = []
        # The account of the chart's hooks and its rights are not removed.
        plane.apply_json(*(e for e in _hooks() if e["kind"] not in ("Job", "DaemonSet")))
        self._policy("gpuslice-requests", _OURS)
        self._policy("u-foreign", {})
        self._node("u-ours", names.AGENT)
        self.patch("u-ours/status", "kubelet", status=_of_node({names.RESOURCE_CORE: "0"}))
        cordoned = {"annotations": {names.ANNOTATION_CORDONED_GPUS: "GPU-1"}}
        self.patch("u-ours", "kubectl", metadata=cordoned)
        self._node("u-koordinator", "koord-manager")
        self._device("u-ours", names.AGENT, _GPU)
        self._device("u-koordinator", "koordlet", _GPU)
        self._device("u-both", names.AGENT, _GPU, _RDMA)
        for lease in (f"{names.LEASE_AGENT_PREFIX}u-ours", "u-other"):
            self._post(_LEASES, lease, spec={})
        for name in (names.AGENT, names.DISTRIBUTOR, "u-other"):
            self.daemon_set(name)
        share = pod(container(), name="u-tenant", annotations={names.ANNOTATION_GRANTS: "{}"})
        self._post(_TENANTS, "u-tenant", **share | {"spec": share["spec"] | {"nodeName": "u-ours"}})

    def _post(self, path: str, name: str, by: str = "operator", **body: object) -> None:
        raw = {"metadata": {"name": name}, **body}
        answer = self.server.ask("POST", f"{path}?fieldManager={by}", raw)
        assert answer.done, answer.body
        self._made.append(f"{path}/{name}")

    def patch(self, node: str, by: str, **body: object) -> None:
        path = f"{_NODES}/{node}?fieldManager={by}"
        answer = self.server.ask("PATCH", path, body, MERGE_PATCH)
        assert answer.done, answer.body

    def exists(self, path: str) -> bool:
        found = self.server.ask("GET", path)
        return found.status == 200 and "deletionTimestamp" not in found.body["metadata"]

    def end_pod(self, component: str) -> None:
        self.server.ask("DELETE", f"{_PODS}/{component}-1?gracePeriodSeconds=0")

    def versions(self) -> list[str]:
        return [self.server.get(path)["metadata"]["resourceVersion"] for path in self._made]

    def totals(self, node: str) -> list[Json]:
        """Return the node's GPU totals: of its capacity, then of its allocatable resources."""
        status = self.server.get(f"{_NODES}/{node}")["status"]
        both = (status["capacity"], status["allocatable"])
        return [{key: value for key, value in each.items() if key != "cpu"} for each in both]

    def _node(self, name: str, by: str) -> None:
        # A kubelet sets this label. Without any field the object would have no managedFields.
        labels = {"kubernetes.io/hostname": name}
        self._post(_NODES, name, "kubelet", metadata={"name": name, "labels": labels})
        self.patch(f"{name}/status", "kubelet", status=_of_node({"cpu": "4"}))
        self.patch(f"{name}/status", by, status=_of_node(_TOTALS))
        labels = {names.LABEL_ISOLATION_PROVIDER: names.ISOLATION_PROVIDER}
        self.patch(name, by, metadata={"labels": labels})

    def _device(self, name: str, by: str, *entries: Mapping[str, object]) -> None:
        kind = {"apiVersion": names.DEVICE_API_VERSION, "kind": names.DEVICE_KIND}
        self._post(_DEVICES, name, by, spec={"devices": entries}, **kind)

    def daemon_set(self, name: str) -> None:
        labels = {names.LABEL_NAME: name, **_OURS}
        spec = {"containers": [container()]}
        template = {"metadata": {"labels": labels}, "spec": spec}
        chosen = {"selector": {"matchLabels": labels}, "template": template}
        self._post(_SETS, name, metadata={"name": name, "labels": labels}, spec=chosen)
        metadata = {"name": f"{name}-1", "labels": labels}
        self._post(_PODS, f"{name}-1", metadata=metadata, spec={**spec, "nodeName": "u-ours"})

    def _policy(self, name: str, labels: Mapping[str, str]) -> None:
        rule = {"apiGroups": ["x"], "apiVersions": ["v1"], "operations": ["CREATE"]}
        matched = {"resourceRules": [{**rule, "resources": ["nothing"]}]}
        spec = {"matchConstraints": matched, "validations": [{"expression": "true"}]}
        metadata = {"name": name, "labels": labels}
        self._post(_POLICIES, name, metadata=metadata, spec=spec)
        bound = {"policyName": name, "validationActions": ["Deny"]}
        self._post(_BINDINGS, name, metadata=metadata, spec=bound)

    def clear(self) -> None:
        for path in self._made:
            self.server.remove(path)


def _of_node(amounts: Mapping[str, str]) -> Json:
    return {"capacity": amounts, "allocatable": amounts}


def _hooks() -> list[Json]:
    rendered = yaml.safe_load_all(chart.render("--show-only=templates/uninstall.yaml"))
    return [each for each in rendered if each]


@pytest.fixture
def cluster(control_plane: ControlPlane) -> Iterator[Cluster]:
    with Server(control_plane) as server:
        made = Cluster(control_plane, server)
        yield made
        made.clear()


def uninstall(cluster: Cluster, *options: str) -> Done:
    account = (names.NAMESPACE, names.UNINSTALLER)
    kubeconfig = cluster.plane.service_account_kubeconfig(*account)
    return run("uninstall", *options, f"--kubeconfig={kubeconfig}")


def _changes(*outputs: str) -> list[str]:
    """Return the lines that report a change in any of these outputs, each once."""
    lines = [line for text in outputs for line in text.splitlines() if ": " in line]
    return list(dict.fromkeys(line for line in lines if not line.startswith("stays: ")))


def test_everything_of_ours_is_removed_in_order_and_nothing_else(cluster: Cluster) -> None:
    before = cluster.versions()
    tried = uninstall(cluster, "--dry-run")
    assert tried.exit_code == 0, tried.stderr
    assert cluster.versions() == before
    promised = [line for line in tried.stdout.splitlines() if line.endswith(" (dry run)")]

    # The totals stay while pods of the agent run, because the agent could write them again.
    early = uninstall(cluster, "--timeout=1")
    assert early.exit_code == 1
    assert "gpuslice-agent-1 on node u-ours" in early.stderr
    assert "gpuslice-distributor-1" in early.stderr and "u-other" not in early.stderr
    assert not cluster.exists(f"{_BINDINGS}/gpuslice-requests")
    assert not cluster.exists(f"{_SETS}/{names.AGENT}")
    assert cluster.totals("u-ours")[0] == {**_TOTALS, names.RESOURCE_CORE: "0"}

    for name in (names.AGENT, names.DISTRIBUTOR):
        cluster.end_pod(name)
    done = uninstall(cluster)
    assert (done.exit_code, done.stderr) == (0, ""), done.stderr
    assert promised == [f"{line} (dry run)" for line in _changes(early.stdout, done.stdout)]
    _is_removed(cluster)
    stays = [line for line in done.stdout.splitlines() if line.startswith("stays: ")]
    for what in (
        f"node/u-ours: {names.ANNOTATION_CORDONED_GPUS}: no agent wrote it",
        f"node/u-koordinator: {', '.join(_TOTALS)}: no agent",
        "device/u-koordinator: another program than the agent wrote it",
        "pod default/u-tenant on node u-ours: it has a share of a GPU, and keeps its limit",
        f"customresourcedefinition/{_DEFINITION}: Koordinator uses it",
        "on each node /run/gpuslice and /usr/local/vgpu/libvgpu.so",
    ):
        assert any(line.startswith(f"stays: {what}") for line in stays), (what, stays)

    again = uninstall(cluster)
    assert again.exit_code == 0
    # Without a controller-manager the DaemonSets stay, marked for deletion.
    assert [line for line in _changes(again.stdout) if not line.startswith("daemonset/")] == []


def _is_removed(cluster: Cluster) -> None:
    assert cluster.totals("u-ours") == [{}, {}]
    assert cluster.totals("u-koordinator") == [_TOTALS, _TOTALS]
    ours, koordinators = (
        cluster.server.get(f"{_NODES}/{name}")["metadata"] for name in ("u-ours", "u-koordinator")
    )
    assert names.LABEL_ISOLATION_PROVIDER not in ours.get("labels", {})
    assert ours["annotations"] == {names.ANNOTATION_CORDONED_GPUS: "GPU-1"}
    assert names.LABEL_ISOLATION_PROVIDER in koordinators["labels"]
    gone = (
        *(f"{_POLICIES}/gpuslice-requests", f"{_BINDINGS}/gpuslice-requests", f"{_DEVICES}/u-ours"),
        f"{_LEASES}/{names.LEASE_AGENT_PREFIX}u-ours",
        *(f"{_SETS}/{names.AGENT}", f"{_SETS}/{names.DISTRIBUTOR}"),
    )
    kept = (
        *(f"{_POLICIES}/u-foreign", f"{_BINDINGS}/u-foreign", f"{_LEASES}/u-other"),
        *(f"{_DEVICES}/u-koordinator", f"{_SETS}/u-other", f"{_PODS}/u-other-1"),
        *(f"{_TENANTS}/u-tenant", f"{_DEFINITIONS}/{_DEFINITION}"),
    )
    assert [path for path in (*gone, *kept) if cluster.exists(path)] == [*kept]
    both = cluster.server.get(f"{_DEVICES}/u-both")["spec"]["devices"]
    assert [each["type"] for each in both] == ["rdma"]


def test_a_lost_node_delays_nothing(cluster: Cluster) -> None:
    """The agent's pods on a lost node cannot end, and are not waited for."""
    lost = {"type": "Ready", "status": "Unknown"}
    cluster.patch("u-ours/status", "kubelet", status={"conditions": [lost]})
    done = uninstall(cluster, "--timeout=1")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "gpuslice-agent-1: its node u-ours is not ready" in done.stdout
    assert cluster.totals("u-ours") == [{}, {}]


def test_a_node_that_is_not_reached_is_reported(cluster: Cluster) -> None:
    """No kubelet runs the uninstaller's pod. So the pod has no log and never becomes ready."""
    cluster.daemon_set(names.UNINSTALLER)
    done = uninstall(cluster, "--nodes", "--timeout=1")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "node/u-ours: not reached: its files stay",
        f"daemonset/{names.UNINSTALLER}: deleted",
    ]
    assert not cluster.exists(f"{_SETS}/{names.UNINSTALLER}")
    cluster.end_pod(names.UNINSTALLER)
    again = uninstall(cluster, "--nodes")
    assert (again.exit_code, again.stdout) == (0, "")


def test_the_account_may_delete_each_policy_of_the_chart() -> None:
    """The role names every policy except `gpuslice-writer`, which stays."""
    (role,) = (each for each in _hooks() if each["kind"] == "ClusterRole")
    (named,) = (rule["resourceNames"] for rule in role["rules"] if "resourceNames" in rule)
    ours = {each["metadata"]["name"] for each in policies(MUTATES, *SWITCHES)}
    assert set(named) == ours - {"gpuslice-writer"}
