"""`python -m scheduler uninstall` on a real API server, with the rights of the chart's account."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import pytest
import yaml

from gpuslice.contract import names
from lab.cluster.controlplane import ControlPlane
from tests.cluster.admission.counting import QUEUES
from tests.cluster.admission.judging import MUTATES, SWITCHES, policies
from tests.cluster.server import MERGE_PATCH, Json, Server
from tests.requests.pods import container
from tests.scheduler.commands import run
from tools import chart

pytestmark = pytest.mark.cluster

_NODES: Final = "/api/v1/nodes"
_DEVICES: Final = f"/apis/{names.DEVICE_API_VERSION}/{names.DEVICE_PLURAL}"
_LEASES: Final = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases"
_SETS: Final = f"/apis/apps/v1/namespaces/{names.NAMESPACE}/daemonsets"
_POLICIES: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
_OURS: Final = {names.LABEL_PART_OF: names.PART_OF}
_GPU: Final = {"type": names.DEVICE_TYPE_GPU, "id": "GPU-1", "minor": 0, "health": True}
_RDMA: Final = {"type": "rdma", "id": "0000:1f:00.2", "minor": 0, "health": True}
_TOTALS: Final = {names.RESOURCE_CORE: "100", names.RESOURCE_MEMORY: str(40 << 30)}


class Cluster:
    """A cluster with objects that gpuslice, Koordinator and the kubelet wrote, by their paths."""

    def __init__(self, plane: ControlPlane, server: Server) -> None:
        self.plane, self.server = plane, server
        self.made: list[str] = []
        # The account of the chart's hooks and its rights are not removed.
        plane.apply_json(*(e for e in _hooks() if e["kind"] not in ("Job", "DaemonSet")))
        self._policy("gpuslice-requests")
        self._node_with_device("u-ours", names.AGENT, _GPU)
        self._report("u-ours", "kubelet", {names.RESOURCE_CORE: "0"})
        self._node_with_device("u-koordinator", "koordlet", _GPU)
        self._node_with_device("u-both", names.AGENT, _GPU, _RDMA)
        self._post(_LEASES, f"{names.LEASE_AGENT_PREFIX}u-ours", spec={})
        for name in (names.AGENT, names.UNINSTALLER):
            self._daemon_set(name)

    def left(self) -> list[str]:
        """Return the paths of the objects that exist and are not being deleted."""
        found = {path: self.server.ask("GET", path) for path in self.made}
        there = {path: each.body["metadata"] for path, each in found.items() if each.status == 200}
        return [path for path, metadata in there.items() if "deletionTimestamp" not in metadata]

    def _post(self, path: str, name: str, by: str = "operator", **body: object) -> None:
        raw = {"metadata": {"name": name}, **body}
        answer = self.server.ask("POST", f"{path}?fieldManager={by}", raw)
        assert answer.done, answer.body
        self.made.append(f"{path}/{name}")

    def _patch(self, node: str, by: str, **body: object) -> None:
        path = f"{_NODES}/{node}?fieldManager={by}"
        assert self.server.ask("PATCH", path, body, MERGE_PATCH).done

    def _report(self, node: str, by: str, totals: Mapping[str, str]) -> None:
        self._patch(f"{node}/status", by, status={"capacity": totals, "allocatable": totals})

    def _node_with_device(self, name: str, by: str, *entries: Mapping[str, object]) -> None:
        # A kubelet sets this label. Without any field the object would have no managedFields.
        labels = {"kubernetes.io/hostname": name}
        self._post(_NODES, name, "kubelet", metadata={"name": name, "labels": labels})
        self._report(name, "kubelet", {"cpu": "4"})
        self._report(name, by, _TOTALS)
        labels = {names.LABEL_ISOLATION_PROVIDER: names.ISOLATION_PROVIDER}
        self._patch(name, by, metadata={"labels": labels})
        kind = {"apiVersion": names.DEVICE_API_VERSION, "kind": names.DEVICE_KIND}
        self._post(_DEVICES, name, by, spec={"devices": entries}, **kind)

    def _daemon_set(self, name: str) -> None:
        labels = {names.LABEL_NAME: name, **_OURS}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [container()]}}
        chosen = {"selector": {"matchLabels": labels}, "template": template}
        self._post(_SETS, name, metadata={"name": name, "labels": labels}, spec=chosen)

    def _policy(self, name: str) -> None:
        rule = {"apiGroups": ["x"], "apiVersions": ["v1"], "operations": ["CREATE"]}
        matched = {"resourceRules": [{**rule, "resources": ["nothing"]}]}
        spec = {"matchConstraints": matched, "validations": [{"expression": "true"}]}
        self._post(_POLICIES, name, metadata={"name": name, "labels": _OURS}, spec=spec)


def _hooks() -> list[Json]:
    rendered = yaml.safe_load_all(chart.render("--show-only=templates/uninstall.yaml"))
    return [each for each in rendered if each]


@pytest.fixture
def cluster(control_plane: ControlPlane) -> Iterator[Cluster]:
    with Server(control_plane) as server:
        made = Cluster(control_plane, server)
        yield made
        for path in made.made:
            server.remove(path)


def uninstall(cluster: Cluster, *options: str) -> list[str]:
    """Return the lines that report a change."""
    kubeconfig = cluster.plane.service_account_kubeconfig(names.NAMESPACE, names.UNINSTALLER)
    done = run("uninstall", *options, f"--kubeconfig={kubeconfig}")
    assert (done.exit_code, done.stderr) == (0, "")
    return [line for line in done.stdout.splitlines() if not line.startswith("stays: ")]


def test_what_our_components_wrote_is_removed_and_nothing_else(cluster: Cluster) -> None:
    assert uninstall(cluster)
    nodes = ("u-ours", "u-koordinator", "u-both")
    kept = {f"{_NODES}/{name}" for name in nodes} | {f"{_SETS}/{names.UNINSTALLER}"}
    kept |= {f"{_DEVICES}/{name}" for name in nodes[1:]}
    assert {*cluster.left()} == kept
    for name in nodes:
        node = cluster.server.get(f"{_NODES}/{name}")
        totals = _TOTALS if name == "u-koordinator" else {}
        for kind in ("capacity", "allocatable"):
            assert node["status"][kind] == {"cpu": "4", **totals}
        assert (names.LABEL_ISOLATION_PROVIDER in node["metadata"]["labels"]) is bool(totals)
    both = cluster.server.get(f"{_DEVICES}/u-both")["spec"]["devices"]
    assert [each["type"] for each in both] == ["rdma"]
    # Without a controller-manager a DaemonSet stays, marked for deletion, or is never complete.
    assert uninstall(cluster) == [f"daemonset/{names.AGENT}: deleted"]
    done = f"daemonset/{names.UNINSTALLER}: deleted"
    assert uninstall(cluster, "--nodes", "--timeout=0") == [done]


CLAIMS: Final = "--set=frontEnd=claims"


def test_the_account_may_delete_each_policy_of_the_chart() -> None:
    """The role names every policy except `gpuslice-writer`, which stays."""
    (role,) = (each for each in _hooks() if each["kind"] == "ClusterRole")
    (named,) = (rule["resourceNames"] for rule in role["rules"] if "resourceNames" in rule)
    ours = {each["metadata"]["name"] for each in policies(MUTATES, QUEUES, CLAIMS, *SWITCHES)}
    assert set(named) == ours - {"gpuslice-writer"}
