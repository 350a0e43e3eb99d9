"""Only the scheduler can write allocations, by any request, at the real API server."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Iterator
from functools import partial
from typing import Final

import pytest

from gpuslice.contract import grants, names, required_plugins
from lab.cluster.controlplane import ControlPlane
from lab.cluster.manifests import STOCK
from tests.cluster.admission import scheduler_lease
from tests.cluster.admission.judging import DRY, PODS, tried
from tests.cluster.server import MERGE_PATCH, STRATEGIC_PATCH, Answer, Json, Server
from tests.requests import pods as made
from tests.requests.pods import workloads
from tests.support import until

pytestmark = pytest.mark.cluster

ALLOCATION: Final = {
    names.ANNOTATION_DEVICE_ALLOCATED: '{"gpu":[]}',
    names.ANNOTATION_GRANTS: grants.encode({"main": [grants.GpuGrant("GPU-a", 0, 1024, 50)]}),
    names.ANNOTATION_WRITER: "tests_1",
    **required_plugins.binding_annotations(["main"]),
}
"""Annotations that only the scheduler writes."""
_OTHERS: Final = (
    names.ANNOTATION_REQUIRED_PLUGINS,
    f"{names.ANNOTATION_REQUIRED_PLUGINS}{names.SCOPE_CONTAINER}other",
)
_OURS: Final = ALLOCATION[f"{names.ANNOTATION_REQUIRED_PLUGINS}{names.SCOPE_POD}"]
FORGED: Final = {**ALLOCATION, **dict.fromkeys(_OTHERS, _OURS)}
ALLOCATED, GRANTS = names.ANNOTATION_DEVICE_ALLOCATED, names.ANNOTATION_GRANTS
_NODE: Final = "n1"


@pytest.fixture(scope="module")
def server(installed: ControlPlane) -> Iterator[Server]:
    with Server(installed) as asked, asked.made("/api/v1/nodes", {"metadata": {"name": _NODE}}):
        scheduler_lease.write(asked, ALLOCATION[names.ANNOTATION_WRITER])
        yield asked
        scheduler_lease.delete(installed)


def pod(annotations: dict[str, str] | None = None, ratio: int = 50, **more: str) -> Json:
    asked = made.asking({names.RESOURCE_MEMORY_RATIO: ratio})
    return made.pod(asked, annotations=annotations or {}, **more)


binding = partial(made.binding, node=_NODE)


def at(name: str, subresource: str = "") -> str:
    return "/".join(filter(None, (PODS, name, subresource)))


@pytest.fixture
def pending(server: Server) -> Iterator[Json]:
    with server.made(PODS, pod(name=f"p-{secrets.token_hex(4)}")) as path:
        yield server.get(path)


@pytest.fixture
def bound(installed: ControlPlane, server: Server, pending: Json) -> Json:
    """Return the pod after the scheduler has bound it with its allocation."""
    name = pending["metadata"]["name"]
    with Server(installed, "scheduler") as scheduler:
        body = binding(name, annotations=ALLOCATION)
        answer = scheduler.ask("POST", at(name, "binding"), body)
    assert answer.done, answer.text
    return server.get(at(name))


def annotations_of(server: Server, live: Json) -> Json:
    found: Json = server.get(at(live["metadata"]["name"]))["metadata"]["annotations"]
    return found


UPDATES: Final = (
    *("PUT pods", "PATCH pods", "PUT pods/status", "PATCH pods/status"),
    "STRATEGIC PATCH pods/status",
)
"""Ways to change the annotations of an existing pod."""
WRITES: Final = (*UPDATES, "POST pods/binding", "POST bindings")


def write(server: Server, way: str, live: Json, annotations: dict[str, str]) -> Answer:
    """Replace the pod's annotations by these. A patch sets each removed annotation to null."""
    method, _, resource = way.removeprefix("STRATEGIC ").partition(" ")
    name = live["metadata"]["name"]
    path = at(name, resource.partition("/")[2])
    if method == "POST":
        path = path if "/" in resource else PODS.replace("pods", resource)
        return server.ask("POST", path, binding(name, annotations=annotations))
    if method == "PUT":
        changed = copy.deepcopy(live)
        changed["metadata"]["annotations"] = annotations
        return server.ask("PUT", path, changed)
    gone = dict.fromkeys(live["metadata"].get("annotations", {}), None)
    body = {"metadata": {"annotations": {**gone, **annotations}}}
    return server.ask("PATCH", path, body, STRATEGIC_PATCH if "STRATEGIC" in way else MERGE_PATCH)


def refused(answer: Answer, text: str) -> None:
    assert (answer.status, answer.policy) == (403, "gpuslice-allocations"), answer.body
    assert answer.text == text


def forbidden(answer: Answer, key: str, user: str = "admin") -> None:
    refused(
        answer,
        f"metadata.annotations[{key}]: forbidden to {user}: must be written by"
        " system:serviceaccount:gpuslice-system:gpuslice-scheduler alone; to copy or restore a pod,"
        " remove it, and scheduling.koordinator.sh/device-allocated, gpuslice.io/grants,"
        " gpuslice.io/writer and required-plugins.noderesource.dev* first",
    )


# --- creation


@pytest.mark.parametrize("key", FORGED)
def test_no_pod_is_created_with_an_allocation(server: Server, key: str) -> None:
    forbidden(server.ask("POST", PODS, pod({key: FORGED[key]}, ratio=0)), key)


def test_only_the_named_scheduler_may_set_an_allocation(server: Server) -> None:
    """JSON can spell a key in more than one way."""
    author = "system:serviceaccount:kube-system:job-controller"
    for text in ('{"gpu":[]}', '{"\\u0067p\\u0075":[]}'):
        forged = pod({ALLOCATED: text}, ratio=0, scheduler=STOCK)
        forbidden(server.ask("POST", PODS, forged, user=author), ALLOCATED, author)


def test_an_allocation_cannot_be_added_to_a_template(server: Server) -> None:
    with server.made(*workloads(pod())["Deployment"]) as path:
        template = {"metadata": {"annotations": {GRANTS: "x"}}}
        forbidden(server.patch(path, {"spec": {"replicas": 2, "template": template}}), GRANTS)
        assert server.patch(path, {"spec": {"replicas": 2}}).done


def test_a_pod_that_may_run_without_the_agent_is_in_the_operators_namespaces(
    server: Server,
) -> None:
    key = names.ANNOTATION_TOLERATES_MISSING_AGENT
    asked = pod({key: "true"})
    refused(
        tried(server, asked),
        f"metadata.annotations[{key}]: invalid value 'true': must be absent in namespace default;"
        " create the pod in gpuslice-system or kube-system",
    )
    for namespace in ("kube-system", names.NAMESPACE):
        assert tried(server, asked, f"/api/v1/namespaces/{namespace}/pods").done


# --- changes


@pytest.mark.parametrize("way", WRITES)
def test_no_way_adds_an_allocation_to_a_pending_pod(
    server: Server, pending: Json, way: str
) -> None:
    for key, value in FORGED.items():
        written = "x" if way in UPDATES else value
        forbidden(write(server, way, pending, {key: written}), key)
    answer = write(server, way, pending, {names.ANNOTATION_TOLERATES_MISSING_AGENT: "true"})
    assert (answer.status, answer.policy) == (403, "gpuslice-allocations"), answer.body
    assert "must be absent in namespace default; create the pod in" in answer.text


@pytest.mark.parametrize("way", UPDATES)
def test_no_way_changes_an_allocation_and_each_may_change_other_annotations(
    server: Server, bound: Json, way: str
) -> None:
    there = bound["metadata"]["annotations"]
    for key in (ALLOCATED, GRANTS):
        forbidden(write(server, way, bound, {**there, key: "x"}), key)
        without = {name: text for name, text in there.items() if name != key}
        forbidden(write(server, way, bound, without), key)
    assert annotations_of(server, bound) == there
    answer = write(server, way, bound, {**there, "example.org/note": "mine"})
    assert answer.done, answer.text
    assert annotations_of(server, bound)["example.org/note"] == "mine"


def test_a_kubelet_reports_its_pod_which_ends_with_its_finalizer(
    server: Server, bound: Json
) -> None:
    """The kubelet writes the pod's status, reports an eviction, and deletes the pod."""
    assert bound["metadata"]["annotations"] == ALLOCATION
    path, kubelet = at(bound["metadata"]["name"]), (f"system:node:{_NODE}", "system:nodes")
    waits = {"finalizers": ["example.org/wait"], "ownerReferences": []}
    assert server.patch(path, {"metadata": waits}).done
    condition = {"type": "Ready", "status": "True"}
    running = {"phase": "Running", "podIP": "10.0.0.9", "conditions": [condition]}
    for status in (running, {"phase": "Failed", "reason": "Evicted"}):
        said = {"metadata": {"uid": bound["metadata"]["uid"]}, "status": status}
        answer = server.ask("PATCH", f"{path}/status", said, STRATEGIC_PATCH, *kubelet)
        assert answer.done, answer.text
    deleted = server.ask("DELETE", f"{path}?gracePeriodSeconds=0", None, MERGE_PATCH, *kubelet)
    assert deleted.done and "deletionTimestamp" in server.get(path)["metadata"]
    assert server.patch(path, {"metadata": {"finalizers": []}}).done
    until(lambda: server.ask("GET", path).status == 404, "the pod is gone")


def test_an_eviction_has_no_allocation(server: Server, bound: Json) -> None:
    """The policy matches every subresource, including those that a newer API server adds."""
    name = bound["metadata"]["name"]
    metadata: Json = {"name": name, "namespace": "default", "annotations": {GRANTS: "x"}}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    forbidden(server.ask("POST", at(name, "eviction") + DRY, eviction), GRANTS)
    del metadata["annotations"]
    answer = server.ask("POST", at(name, "eviction"), eviction)
    assert answer.done, answer.text


def test_another_scheduler_binds_a_pod_without_a_share(server: Server, pending: Json) -> None:
    """No policy applies to a Binding without annotations. RBAC alone restricts it."""
    name = pending["metadata"]["name"]
    answer = server.ask("POST", at(name, "binding"), binding(name), user="system:kube-scheduler")
    assert answer.done, answer.text


def test_a_request_cannot_be_changed_through_the_pods_status(server: Server, pending: Json) -> None:
    """pods/status must not change labels and annotations of a request, because the policies check
    their values only in the pod itself."""
    path = at(pending["metadata"]["name"])
    label, policy = names.LABEL_ISOLATION_PROVIDER, names.ANNOTATION_POLICY

    def refuses(what: str, key: str, value: str | None) -> None:
        refused(
            server.patch(f"{path}/status", {"metadata": {what: {key: value}}}),
            f"metadata.{what}[{key}]: forbidden to admin: must not change through pods/status;"
            " change the pod itself",
        )

    for key in (
        *(policy, names.ANNOTATION_ALLOCATE_HINT, names.ANNOTATION_JOINT_ALLOCATE),
        *(names.ANNOTATION_PARTITION_SPEC, names.ANNOTATION_COMPUTE),
        f"{names.ANNOTATION_COMPUTE_PREFIX}main",
    ):
        refuses("annotations", key, "junk")
    refuses("labels", label, "mps")
    asked = {"labels": {label: names.ISOLATION_PROVIDER}, "annotations": {policy: "spread"}}
    assert server.patch(path, {"metadata": asked}).done
    refuses("annotations", policy, None)
    refuses("labels", label, None)
    metadata = {"labels": {"a": "b"}, "annotations": {"example.org/note": "mine"}}
    for said in (metadata, asked):
        body = {"metadata": said, "status": {"message": "it waits"}}
        assert server.patch(f"{path}/status", body).done
