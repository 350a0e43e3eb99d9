"""A real API server with gpuslice's policies in force admits pods that request no share, pods of
Koordinator and restored pods. The last test removes gpuslice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from gpuslice.contract import names
from lab.cluster.controlplane import ControlPlane
from tests.bystanders.conftest import ACCOUNT, KOORDINATORS_KIND, NODE
from tests.bystanders.pods import BYSTANDERS, KOORD_SCHEDULER, RDMA
from tests.cluster.admission.test_allocations import ALLOCATION
from tests.cluster.server import MERGE_PATCH, Answer, Server
from tests.node.kubelet import Json
from tests.requests.pods import asking, binding, container, pod, workloads
from tests.support import until
from tools import chart

pytestmark = pytest.mark.cluster

_PODS: Final = "/api/v1/namespaces/default/pods"
_ALLOCATED: Final = names.ANNOTATION_DEVICE_ALLOCATED
_KOORDINATORS: Final = {
    "gpu": [{"minor": 0, "id": "GPU-a", "resources": {"koordinator.sh/gpu-core": "50"}}]
}
HALF: Final = {names.RESOURCE_CORE: 50, names.RESOURCE_MEMORY_RATIO: 50}
KOORDINATORS_PODS: Final = {
    "a share": asking(HALF),
    "compute alone": asking({names.RESOURCE_CORE: 50}),
    "a GPU and RDMA": asking({names.RESOURCE_GPU: 100, "koordinator.sh/rdma": 100}),
    "more than 16 GPUs": asking({names.RESOURCE_GPU: 3200}),
    "a variable of HAMi's": asking(HALF, env=[{"name": names.ENV_MEMORY_LIMIT, "value": "1g"}]),
    "a resource of a newer Koordinator": asking({"koordinator.sh/gpu-tiles": 4}),
    "RDMA alone": asking({"koordinator.sh/rdma": 100}),
}


@pytest.fixture(scope="module")
def server(plane: ControlPlane) -> Iterator[Server]:
    with Server(plane) as asked:
        yield asked


def made(server: Server, raw: Json) -> Answer:
    path = f"/api/v1/namespaces/{raw['metadata'].get('namespace', 'default')}/pods"
    return server.ask("POST", path, raw)


def gone(server: Server, raw: Json) -> None:
    path = f"/api/v1/namespaces/{raw['metadata'].get('namespace', 'default')}/pods"
    server.ask("DELETE", f"{path}/{raw['metadata']['name']}?gracePeriodSeconds=0")


@contextmanager
def existing(server: Server, raw: Json) -> Iterator[None]:
    assert made(server, raw).done
    try:
        yield
    finally:
        gone(server, raw)


def koordinators(asks: Json, **metadata: Any) -> Json:
    return pod(asks, scheduler=KOORD_SCHEDULER, **metadata)


# --- pods that request no share


@pytest.mark.parametrize("row", BYSTANDERS)
def test_a_pod_without_a_share_is_admitted_without_a_warning(plane: ControlPlane, row: str) -> None:
    done = plane.try_kubectl("create", "-f", "-", given=json.dumps(BYSTANDERS[row]))
    try:
        assert (done.returncode, done.stderr) == (0, "")
    finally:
        plane.remove_pods(BYSTANDERS[row]["metadata"]["namespace"])


# --- restored pods


def test_a_restored_share_is_scheduled_again(plane: ControlPlane, server: Server) -> None:
    """Velero recreates a pod with its old annotations and without its node. `kubectl debug
    --copy-to` does the same. The Binding overwrites the old allocation."""
    stale = dict.fromkeys(ALLOCATION, '["gpuslice"]')
    raw = pod(
        asking(HALF), name="restored", annotations=stale, labels={"velero.io/restore-name": "r"}
    )
    with existing(server, raw):
        allocated = binding("restored", NODE, ALLOCATION)
        with Server(plane, "scheduler") as scheduler:
            assert scheduler.ask("POST", f"{_PODS}/restored/binding", allocated).done
        bound = server.ask("GET", f"{_PODS}/restored").body
        assert bound["metadata"]["annotations"] == ALLOCATION


# --- Koordinator


def test_koordinators_resource_definition_is_unchanged(server: Server) -> None:
    name = KOORDINATORS_KIND["metadata"]["name"]
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
    there = server.ask("GET", path).body
    assert there["metadata"].get("labels", {}) == {}
    assert there["spec"]["versions"] == KOORDINATORS_KIND["spec"]["versions"]


@pytest.mark.parametrize("what", KOORDINATORS_PODS)
def test_koordinators_pods_are_admitted(server: Server, what: str) -> None:
    """The API server also admits workloads whose template is such a pod of Koordinator, and a
    pod of Koordinator that names its node."""
    annotations = {names.ANNOTATION_JOINT_ALLOCATE: '{"deviceTypes":["gpu","rdma"]}'}
    raw = koordinators(KOORDINATORS_PODS[what], annotations=annotations)
    raw["spec"]["nodeName"] = NODE
    answer = server.ask("POST", f"{_PODS}?dryRun=All", raw)
    assert answer.done, answer.text
    for path, workload in workloads(koordinators(KOORDINATORS_PODS[what])).values():
        answer = server.ask("POST", f"{path}?dryRun=All", workload)
        assert answer.done, answer.text


@pytest.mark.parametrize("allocated", [json.dumps(_KOORDINATORS), RDMA])
@pytest.mark.parametrize("status", ["", "/status"])
def test_koordinators_scheduler_writes_its_own_allocations(
    server: Server, allocated: str, status: str
) -> None:
    """Koordinator's PreBind patches the pod before the Binding. Later changes are accepted, too."""
    raw = koordinators(asking(HALF), name="koordinators")
    with existing(server, raw):
        at = f"{_PODS}/koordinators{status}"
        annotated = {"metadata": {"annotations": {_ALLOCATED: allocated}}}
        answer = server.ask("PATCH", at, annotated, MERGE_PATCH, ACCOUNT)
        assert answer.done, answer.text
        bound = binding("koordinators", NODE)
        assert server.ask("POST", f"{_PODS}/koordinators/binding", bound, user=ACCOUNT).done
        note = {"metadata": {"annotations": {"example.org/note": "mine"}}}
        assert server.ask("PATCH", at, note, MERGE_PATCH).done


def test_koordinators_scheduler_cannot_write_allocations_of_our_pods(server: Server) -> None:
    raw = pod(asking(HALF), name="ours")
    with existing(server, raw):
        for key, text in ((_ALLOCATED, RDMA), (names.ANNOTATION_GRANTS, "{}")):
            annotated = {"metadata": {"annotations": {key: text}}}
            answer = server.ask("PATCH", f"{_PODS}/ours", annotated, MERGE_PATCH, ACCOUNT)
            assert (answer.status, answer.policy) == (403, "gpuslice-allocations"), answer.body


@pytest.mark.parametrize("name", ["koordinator.sh/gpu-tiles", "kubernetes.io/gpu"])
def test_an_unknown_resource_is_warned_of(plane: ControlPlane, name: str) -> None:
    raw = koordinators(asking({name: 1}))
    every = [raw, workloads(raw)["Deployment"][1]]
    for each in every:
        done = plane.try_kubectl("create", "--dry-run=server", "-f", "-", given=json.dumps(each))
        assert done.returncode == 0
        assert f"container main: resource name: invalid value {name}: must be one of" in done.stderr


# --- removal


def test_pods_of_others_and_devices_stay_when_gpuslice_is_removed(
    plane: ControlPlane, server: Server
) -> None:
    pods = [*BYSTANDERS.values(), koordinators(asking(HALF), name="koordinators")]
    device = {
        "apiVersion": names.DEVICE_API_VERSION,
        "kind": "Device",
        "metadata": {"name": NODE},
        "spec": {"devices": []},
    }
    devices = f"/apis/{names.DEVICE_API_VERSION}/{names.DEVICE_PLURAL}"
    assert all(made(server, raw).done for raw in pods)
    assert server.ask("POST", devices, device).done
    uids = {each["metadata"]["uid"] for each in _listed(server)}
    plane.kubectl("delete", "-f", "-", "--wait=false", given=chart.install())
    forged = pod(container(), name="anything", annotations=dict(ALLOCATION))
    until(lambda: server.ask("POST", f"{_PODS}?dryRun=All", forged).done, "no policy is left")
    assert uids and {each["metadata"]["uid"] for each in _listed(server)} == uids
    assert server.ask("GET", f"{devices}/{NODE}").done
    for raw in pods:
        gone(server, raw)
        assert made(server, raw).done


def _listed(server: Server) -> list[Json]:
    items: list[Json] = server.ask("GET", "/api/v1/pods").body["items"]
    return [each for each in items if each["metadata"]["namespace"] != names.NAMESPACE]
