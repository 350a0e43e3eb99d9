"""`python -m scheduler uninstall` on a real API server: what it removes, in which order, and what
it leaves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pytest
import yaml

from gpuslice.contract import names
from gpuslice.contract.dialects import VOLCANO_MEMORY
from lab.cluster.controlplane import ControlPlane
from tests.cluster.admission.judging import MUTATES, SWITCHES, policies
from tests.cluster.server import MERGE_PATCH, Server
from tests.scheduler.commands import Done, run
from tools import chart

pytestmark = pytest.mark.cluster

Json = dict[str, Any]

_DEVICES: Final = f"/apis/{names.DEVICE_API_VERSION}/{names.DEVICE_PLURAL}"
_LEASES: Final = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases"
_SETS: Final = f"/apis/apps/v1/namespaces/{names.NAMESPACE}/daemonsets"
_PODS: Final = f"/api/v1/namespaces/{names.NAMESPACE}/pods"
_POLICIES: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
_BINDINGS: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
_OURS: Final = {names.LABEL_PART_OF: names.PART_OF}
_GPU: Final = {
    "type": names.DEVICE_TYPE_GPU,
    "id": "GPU-1",
    "minor": 0,
    "health": True,
    "resources": {names.RESOURCE_MEMORY: str(40 << 30)},
}
_RDMA: Final = {"type": "rdma", "id": "0000:1f:00.2", "minor": 0, "health": True, "resources": {}}
_TOTALS: Final = {
    names.RESOURCE_CORE: "100",
    names.RESOURCE_MEMORY: str(40 << 30),
    VOLCANO_MEMORY: str(40 << 10),
}


class Cluster:
    """Objects as gpuslice, Koordinator, the kubelet and an operator write them."""

    def __init__(self, plane: ControlPlane, server: Server) -> None:
        self.plane, self._server = plane, server
        self._made: list[str] = []

    def post(self, path: str, body: Json, by: str = "operator") -> None:
        answer = self._server.ask("POST", f"{path}?fieldManager={by}", body)
        assert answer.done, answer.body
        self._made.append(f"{path}/{body['metadata']['name']}")

    def patch(self, path: str, body: Json, by: str) -> None:
        answer = self._server.ask("PATCH", f"{path}?fieldManager={by}", body, MERGE_PATCH)
        assert answer.done, answer.body

    def get(self, path: str) -> Json:
        return self._server.ask("GET", path).body

    def exists(self, path: str) -> bool:
        found = self._server.ask("GET", path)
        return found.status == 200 and "deletionTimestamp" not in found.body["metadata"]

    def delete(self, path: str) -> None:
        self._server.ask("DELETE", f"{path}?gracePeriodSeconds=0")

    def versions(self) -> list[str]:
        return [self.get(path)["metadata"]["resourceVersion"] for path in self._made]

    def node(self, name: str, totals: Mapping[str, str], by: str) -> None:
        # As a kubelet's; the API server records no managers of an object that is created empty.
        labels = {"kubernetes.io/hostname": name}
        self.post("/api/v1/nodes", {"metadata": {"name": name, "labels": labels}}, "kubelet")
        cpu = {"capacity": {"cpu": "4"}, "allocatable": {"cpu": "4"}}
        self.patch(f"/api/v1/nodes/{name}/status", {"status": cpu}, "kubelet")
        both = {"capacity": totals, "allocatable": totals}
        self.patch(f"/api/v1/nodes/{name}/status", {"status": both}, by)
        labels = {names.LABEL_ISOLATION_PROVIDER: names.ISOLATION_PROVIDER}
        self.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": labels}}, by)

    def device(self, name: str, by: str, *entries: Mapping[str, Any]) -> None:
        body = {
            "apiVersion": names.DEVICE_API_VERSION,
            "kind": names.DEVICE_KIND,
            "metadata": {"name": name},
            "spec": {"devices": entries},
        }
        self.post(_DEVICES, body, by)

    def daemon_set(self, name: str) -> None:
        labels = {names.LABEL_NAME: name, **_OURS}
        spec = {"containers": [{"name": "main", "image": "none"}]}
        template = {"metadata": {"labels": labels}, "spec": spec}
        chosen = {"selector": {"matchLabels": labels}, "template": template}
        self.post(_SETS, {"metadata": {"name": name, "labels": labels}, "spec": chosen})
        pod = {"metadata": {"name": f"{name}-1", "labels": labels}}
        self.post(_PODS, {**pod, "spec": {**spec, "nodeName": "u-ours"}})

    def policy(self, name: str, labels: Mapping[str, str]) -> None:
        rule = {"apiGroups": ["x"], "apiVersions": ["v1"], "operations": ["CREATE"]}
        spec = {
            "matchConstraints": {"resourceRules": [{**rule, "resources": ["nothing"]}]},
            "validations": [{"expression": "true"}],
        }
        self.post(_POLICIES, {"metadata": {"name": name, "labels": labels}, "spec": spec})
        bound = {"policyName": name, "validationActions": ["Deny"]}
        self.post(_BINDINGS, {"metadata": {"name": name, "labels": labels}, "spec": bound})

    def hooks(self) -> None:
        """The account of the chart's hooks, and its rights, which stay."""
        rendered = yaml.safe_load_all(chart.render("--show-only=templates/uninstall.yaml"))
        kinds = ("Job", "DaemonSet")
        self.plane.apply_json(*(each for each in rendered if each and each["kind"] not in kinds))

    def clear(self) -> None:
        for path in self._made:
            self._server.ask("PATCH", path, {"metadata": {"finalizers": None}}, MERGE_PATCH)
            self.delete(path)


@pytest.fixture
def cluster(control_plane: ControlPlane) -> Iterator[Cluster]:
    with Server(control_plane) as server:
        made = Cluster(control_plane, server)
        try:
            _fill(made)
            yield made
        finally:
            made.clear()


def _fill(made: Cluster) -> None:
    made.hooks()
    made.policy("gpuslice-requests", _OURS)
    made.policy("u-foreign", {})
    made.node("u-ours", _TOTALS, names.AGENT)
    zero = {"capacity": {names.RESOURCE_CORE: "0"}, "allocatable": {names.RESOURCE_CORE: "0"}}
    made.patch("/api/v1/nodes/u-ours/status", {"status": zero}, "kubelet")
    annotations = {names.ANNOTATION_CORDONED_GPUS: "GPU-1"}
    made.patch("/api/v1/nodes/u-ours", {"metadata": {"annotations": annotations}}, "kubectl")
    made.node("u-koordinator", _TOTALS, "koord-manager")
    made.device("u-ours", names.AGENT, _GPU)
    made.device("u-koordinator", "koordlet", _GPU)
    made.device("u-both", names.AGENT, _GPU, _RDMA)
    made.post(_LEASES, {"metadata": {"name": f"{names.LEASE_AGENT_PREFIX}u-ours"}, "spec": {}})
    made.post(_LEASES, {"metadata": {"name": "u-other"}, "spec": {}})
    made.daemon_set(names.AGENT)
    made.daemon_set(names.DISTRIBUTOR)
    made.daemon_set("u-other")
    container = {"name": "main", "image": "none"}
    share = {"name": "u-tenant", "annotations": {names.ANNOTATION_GRANTS: "{}"}}
    spec = {"nodeName": "u-ours", "containers": [container]}
    made.post("/api/v1/namespaces/default/pods", {"metadata": share, "spec": spec})


def uninstall(plane: ControlPlane, *options: str) -> Done:
    """Run as the chart's Job does, with its rights."""
    kubeconfig = plane.service_account_kubeconfig(names.NAMESPACE, names.UNINSTALLER)
    return run("uninstall", *options, f"--kubeconfig={kubeconfig}")


def gpu_totals(cluster: Cluster, node: str) -> list[Json]:
    status = cluster.get(f"/api/v1/nodes/{node}")["status"]
    return [
        {key: value for key, value in status[kind].items() if key != "cpu"}
        for kind in ("capacity", "allocatable")
    ]


def test_everything_of_ours_is_removed_in_order_and_nothing_else(cluster: Cluster) -> None:
    before = cluster.versions()
    tried = uninstall(cluster.plane, "--dry-run")
    assert tried.exit_code == 0, tried.stderr
    assert cluster.versions() == before
    promised = [line for line in tried.stdout.splitlines() if line.endswith(" (dry run)")]

    # While pods of the agent run, it could write its values again.
    early = uninstall(cluster.plane, "--timeout=1")
    assert early.exit_code == 1
    assert "gpuslice-agent-1 on node u-ours" in early.stderr
    assert "gpuslice-distributor-1" in early.stderr and "u-other" not in early.stderr
    assert not cluster.exists(f"{_BINDINGS}/gpuslice-requests") and not cluster.exists(
        f"{_SETS}/{names.AGENT}"
    )
    assert gpu_totals(cluster, "u-ours")[0] == {**_TOTALS, names.RESOURCE_CORE: "0"}

    for name in (names.AGENT, names.DISTRIBUTOR):
        cluster.delete(f"{_PODS}/{name}-1")
    done = uninstall(cluster.plane)
    assert (done.exit_code, done.stderr) == (0, ""), done.stderr
    assert promised == [f"{line} (dry run)" for line in _changes(early.stdout, done.stdout)]
    _is_removed(cluster)
    stays = [line for line in done.stdout.splitlines() if line.startswith("stays: ")]
    for what in (
        f"stays: node/u-ours: {names.ANNOTATION_CORDONED_GPUS}: no agent wrote it",
        f"stays: node/u-koordinator: {', '.join(_TOTALS)}: no agent",
        "stays: device/u-koordinator: another program than the agent wrote it",
        "stays: pod default/u-tenant on node u-ours: it has a share of a GPU, and keeps its limit",
        "stays: customresourcedefinition/devices.scheduling.koordinator.sh: Koordinator uses it",
        "stays: on each node /run/gpuslice and /usr/local/vgpu/libvgpu.so",
    ):
        assert any(line.startswith(what) for line in stays), (what, stays)

    again = uninstall(cluster.plane)
    assert again.exit_code == 0
    # Without a controller-manager the DaemonSets stay, marked for deletion.
    assert [line for line in _changes(again.stdout) if not line.startswith("daemonset/")] == []


def test_a_lost_node_delays_nothing(cluster: Cluster) -> None:
    """Its pods cannot end."""
    lost = {"type": "Ready", "status": "Unknown"}
    cluster.patch("/api/v1/nodes/u-ours/status", {"status": {"conditions": [lost]}}, "kubelet")
    done = uninstall(cluster.plane, "--timeout=1")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "gpuslice-agent-1: its node u-ours is not ready" in done.stdout
    assert gpu_totals(cluster, "u-ours") == [{}, {}]


def test_a_node_that_is_not_reached_is_reported(cluster: Cluster) -> None:
    """No kubelet runs the pod, so that it has no log and is never ready."""
    cluster.daemon_set(names.UNINSTALLER)
    done = uninstall(cluster.plane, "--nodes", "--timeout=1")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "node/u-ours: not reached: its files stay",
        f"daemonset/{names.UNINSTALLER}: deleted",
    ]
    assert not cluster.exists(f"{_SETS}/{names.UNINSTALLER}")
    cluster.delete(f"{_PODS}/{names.UNINSTALLER}-1")
    again = uninstall(cluster.plane, "--nodes")
    assert (again.exit_code, again.stdout) == (0, "")


def test_the_account_may_delete_each_policy_of_the_chart() -> None:
    """It may delete each by its name, and no other."""
    hooks = yaml.safe_load_all(chart.render("--show-only=templates/uninstall.yaml"))
    (role,) = (each for each in hooks if each and each["kind"] == "ClusterRole")
    (named,) = (rule["resourceNames"] for rule in role["rules"] if "resourceNames" in rule)
    ours = {each["metadata"]["name"] for each in policies(MUTATES, *SWITCHES)}
    assert set(named) == ours - {"gpuslice-writer"}


def _changes(*outputs: str) -> Sequence[str]:
    """The lines about changes of several runs, without repetitions."""
    lines = [line for text in outputs for line in text.splitlines() if ": " in line]
    return list(dict.fromkeys(line for line in lines if not line.startswith("stays: ")))


def _is_removed(cluster: Cluster) -> None:
    assert gpu_totals(cluster, "u-ours") == [{}, {}]
    assert gpu_totals(cluster, "u-koordinator") == [_TOTALS, _TOTALS]
    metadata = cluster.get("/api/v1/nodes/u-ours")["metadata"]
    assert names.LABEL_ISOLATION_PROVIDER not in metadata.get("labels", {})
    assert metadata["annotations"] == {names.ANNOTATION_CORDONED_GPUS: "GPU-1"}
    labels = cluster.get("/api/v1/nodes/u-koordinator")["metadata"]["labels"]
    assert names.LABEL_ISOLATION_PROVIDER in labels
    there = {
        path: cluster.exists(path)
        for path in (
            *(f"{_POLICIES}/gpuslice-requests", f"{_POLICIES}/u-foreign"),
            *(f"{_BINDINGS}/gpuslice-requests", f"{_BINDINGS}/u-foreign"),
            *(f"{_DEVICES}/{name}" for name in ("u-ours", "u-koordinator", "u-both")),
            *(f"{_LEASES}/{names.LEASE_AGENT_PREFIX}u-ours", f"{_LEASES}/u-other"),
            *(f"{_SETS}/{name}" for name in (names.AGENT, names.DISTRIBUTOR, "u-other")),
            *(f"{_PODS}/u-other-1", "/api/v1/namespaces/default/pods/u-tenant"),
        )
    }
    assert [path for path, exists in there.items() if not exists] == [
        *(f"{_POLICIES}/gpuslice-requests", f"{_BINDINGS}/gpuslice-requests", f"{_DEVICES}/u-ours"),
        f"{_LEASES}/{names.LEASE_AGENT_PREFIX}u-ours",
        *(f"{_SETS}/{names.AGENT}", f"{_SETS}/{names.DISTRIBUTOR}"),
    ]
    both = cluster.get(f"{_DEVICES}/u-both")["spec"]["devices"]
    assert [each["type"] for each in both] == ["rdma"]
    crd = (
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/devices.scheduling.koordinator.sh"
    )
    assert cluster.exists(crd)
