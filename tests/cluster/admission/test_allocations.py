"""Only the scheduler can write allocations, by any request, at the real API server."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from gpuslice.contract import grants, names, required_plugins
from lab.cluster.controlplane import ControlPlane
from tests.cluster.admission import scheduler_lease
from tests.cluster.server import MERGE_PATCH, STRATEGIC_PATCH, Answer, Server
from tests.requests import pods as made
from tests.requests.pods import workloads
from tests.support import until

pytestmark = pytest.mark.cluster

Json = dict[str, Any]

ALLOCATION: Final = {
    names.ANNOTATION_DEVICE_ALLOCATED: '{"gpu":[]}',
    names.ANNOTATION_GRANTS: grants.encode({"main": [grants.GpuGrant("GPU-a", 0, 1024, 50)]}),
    names.ANNOTATION_WRITER: "tests_1",
    **required_plugins.binding_annotations(["main"]),
}
"""Annotations that only the scheduler writes."""
OURS: Final = ALLOCATION[f"{names.ANNOTATION_REQUIRED_PLUGINS}{names.SCOPE_POD}"]
RESERVED: Final = (
    *ALLOCATION,
    names.ANNOTATION_REQUIRED_PLUGINS,
    f"{names.ANNOTATION_REQUIRED_PLUGINS}{names.SCOPE_CONTAINER}other",
)
ALLOCATED, GRANTS = names.ANNOTATION_DEVICE_ALLOCATED, names.ANNOTATION_GRANTS
_NODE: Final = "n1"


@pytest.fixture(scope="module")
def server(installed: ControlPlane) -> Iterator[Server]:
    with Server(installed) as asked:
        assert asked.ask("POST", "/api/v1/nodes", {"metadata": {"name": _NODE}}).done
        scheduler_lease.write(asked, ALLOCATION[names.ANNOTATION_WRITER])
        yield asked
        scheduler_lease.delete(installed)
        assert asked.ask("DELETE", f"/api/v1/nodes/{_NODE}").done


@pytest.fixture(scope="module")
def scheduler(installed: ControlPlane) -> Iterator[Server]:
    with Server(installed, "scheduler") as asked:
        yield asked


def pod(
    name: str,
    annotations: dict[str, str] | None = None,
    scheduler: str = names.SCHEDULER_NAME,
    ratio: int = 50,
) -> Json:
    asked = made.asking({names.RESOURCE_MEMORY_RATIO: ratio})
    return made.pod(asked, scheduler=scheduler, name=name, annotations=annotations or {})


def binding(name: str, annotations: dict[str, str] | None = None) -> Json:
    return made.binding(name, _NODE, annotations)


def at(name: str = "", subresource: str = "") -> str:
    return "/".join(filter(None, ("/api/v1/namespaces/default/pods", name, subresource)))


@pytest.fixture
def pending(server: Server) -> Iterator[Json]:
    name = f"p-{secrets.token_hex(4)}"
    made = server.ask("POST", at(), pod(name))
    assert made.done, made.text
    yield made.body
    server.ask("DELETE", f"{at(name)}?gracePeriodSeconds=0")


@pytest.fixture
def bound(server: Server, scheduler: Server, pending: Json) -> Json:
    """Bound by the scheduler, with its allocation."""
    name = pending["metadata"]["name"]
    answer = scheduler.ask("POST", at(name, "binding"), binding(name, dict(ALLOCATION)))
    assert answer.done, answer.text
    return server.ask("GET", at(name)).body


def annotations_of(server: Server, live: Json) -> Json:
    found: Json = server.ask("GET", at(live["metadata"]["name"])).body["metadata"]["annotations"]
    return found


Write = Callable[[Server, Json, dict[str, str]], Answer]


def _put(sub: str = "") -> Write:
    def write(server: Server, live: Json, annotations: dict[str, str]) -> Answer:
        changed = copy.deepcopy(live)
        changed["metadata"]["annotations"] = annotations
        return server.ask("PUT", at(live["metadata"]["name"], sub), changed)

    return write


def _patch(sub: str = "", content: str = MERGE_PATCH) -> Write:
    """A patch also names what it removes."""

    def write(server: Server, live: Json, annotations: dict[str, str]) -> Answer:
        gone = dict.fromkeys(live["metadata"].get("annotations", {}), None)
        body = {"metadata": {"annotations": {**gone, **annotations}}}
        return server.ask("PATCH", at(live["metadata"]["name"], sub), body, content)

    return write


def _bind(path: str) -> Write:
    def write(server: Server, live: Json, annotations: dict[str, str]) -> Answer:
        name = live["metadata"]["name"]
        return server.ask("POST", path.format(name), binding(name, annotations))

    return write


UPDATES: Final[dict[str, Write]] = {
    "PUT pods": _put(),
    "PATCH pods": _patch(),
    "PUT pods/status": _put("status"),
    "PATCH pods/status": _patch("status"),
    "strategic PATCH pods/status": _patch("status", STRATEGIC_PATCH),
}
"""Ways to change the annotations of an existing pod."""
WRITES: Final = {
    **UPDATES,
    "POST pods/binding": _bind(at("{}", "binding")),
    "POST bindings": _bind("/api/v1/namespaces/default/bindings"),
}
HARMLESS: Final = {
    f"{write.__name__[1:].upper()} pods/{sub}": write(sub)
    for write in (_put, _patch)
    for sub in ("resize", "ephemeralcontainers")
}
"""Subresources whose annotations current API servers drop; the policy matches them in case another
version does not."""


def refused(answer: Answer, key: str, user: str = "admin") -> None:
    assert (answer.status, answer.policy) == (403, "gpuslice-allocations"), answer.body
    assert answer.text == (
        f"metadata.annotations[{key}]: forbidden to {user}: must be written by"
        " system:serviceaccount:gpuslice-system:gpuslice-scheduler alone; to copy or restore a pod,"
        " remove it, and scheduling.koordinator.sh/device-allocated, gpuslice.io/grants,"
        " gpuslice.io/writer and required-plugins.noderesource.dev* first"
    )


@pytest.mark.parametrize("key", RESERVED)
def test_no_pod_is_created_with_an_allocation(server: Server, key: str) -> None:
    forged = pod("forged", {key: ALLOCATION.get(key, OURS)}, ratio=0)
    refused(server.ask("POST", at(), forged), key)


def test_only_the_named_scheduler_may_set_an_allocation(server: Server) -> None:
    """JSON can spell a key in more than one way."""
    key, author = ALLOCATED, "system:serviceaccount:kube-system:job-controller"
    for text in ('{"gpu":[]}', '{"\\u0067p\\u0075":[]}'):
        forged = pod("forged", {key: text}, scheduler="default-scheduler", ratio=0)
        refused(server.ask("POST", at(), forged, user=author), key, author)


@pytest.mark.parametrize("kind", workloads(pod("p")))
def test_a_template_with_an_allocation_is_refused(server: Server, kind: str) -> None:
    """Its pods would be refused later, unnoticed. On the workload itself the annotation has no
    meaning."""
    path, workload = workloads(pod("p", {GRANTS: "x"}))[kind]
    refused(server.ask("POST", f"{path}?dryRun=All", workload), GRANTS)
    path, workload = workloads(pod("p"))[kind]
    workload["metadata"]["annotations"] = {GRANTS: "x"}
    assert server.ask("POST", f"{path}?dryRun=All", workload).done


def test_an_allocation_cannot_be_added_to_a_template(server: Server) -> None:
    path, workload = workloads(pod("p"))["Deployment"]
    assert server.ask("POST", path, workload).done
    try:
        template = {"metadata": {"annotations": {GRANTS: "x"}}}
        body: Json = {"spec": {"replicas": 2, "template": template}}
        refused(server.ask("PATCH", f"{path}/w", body, MERGE_PATCH), GRANTS)
        del body["spec"]["template"]
        assert server.ask("PATCH", f"{path}/w", body, MERGE_PATCH).done
    finally:
        server.ask("DELETE", f"{path}/w")


@pytest.mark.parametrize("way", WRITES)
def test_no_way_adds_an_allocation_to_a_pending_pod(
    server: Server, pending: Json, way: str
) -> None:
    for key in RESERVED:
        value = "x" if way in UPDATES else ALLOCATION.get(key, OURS)
        refused(WRITES[way](server, pending, {key: value}), key)
    answer = WRITES[way](server, pending, {names.ANNOTATION_TOLERATES_MISSING_AGENT: "true"})
    assert (answer.status, answer.policy) == (403, "gpuslice-allocations"), answer.body
    assert "must be absent in namespace default; create the pod in" in answer.text


@pytest.mark.parametrize("way", UPDATES)
def test_no_way_changes_an_allocation_and_each_may_change_other_annotations(
    server: Server, bound: Json, way: str
) -> None:
    there = bound["metadata"]["annotations"]
    for key in (ALLOCATED, GRANTS):
        refused(UPDATES[way](server, bound, {**there, key: "x"}), key)
        without = {name: text for name, text in there.items() if name != key}
        refused(UPDATES[way](server, bound, without), key)
    assert annotations_of(server, bound) == there
    answer = UPDATES[way](server, bound, {**there, "example.org/note": "mine"})
    assert answer.done, answer.text
    assert annotations_of(server, bound)["example.org/note"] == "mine"


@pytest.mark.parametrize("way", HARMLESS)
def test_no_other_subresource_changes_an_allocation(server: Server, bound: Json, way: str) -> None:
    there = bound["metadata"]["annotations"]
    HARMLESS[way](server, bound, {**there, GRANTS: "x"})
    HARMLESS[way](server, bound, {})
    assert annotations_of(server, bound) == there


def test_a_kubelet_reports_and_ends_its_pod(server: Server, bound: Json) -> None:
    """Its status, its containers' statuses, the condition of an eviction; then its deletion."""
    assert bound["metadata"]["annotations"] == ALLOCATION
    name, kubelet = bound["metadata"]["name"], (f"system:node:{_NODE}", "system:nodes")
    condition = {"type": "Ready", "status": "True"}
    running = {"phase": "Running", "podIP": "10.0.0.9", "conditions": [condition]}
    for status in (running, {"phase": "Failed", "reason": "Evicted"}):
        said = {"metadata": {"uid": bound["metadata"]["uid"]}, "status": status}
        answer = server.ask("PATCH", at(name, "status"), said, STRATEGIC_PATCH, *kubelet)
        assert answer.done, answer.text
    path = f"{at(name)}?gracePeriodSeconds=0"
    assert server.ask("DELETE", path, None, MERGE_PATCH, *kubelet).done


def test_a_finalizer_is_added_and_removed_and_the_pod_is_deleted(
    server: Server, bound: Json
) -> None:
    name = bound["metadata"]["name"]
    body = {"metadata": {"finalizers": ["example.org/wait"], "ownerReferences": []}}
    assert server.ask("PATCH", at(name), body, MERGE_PATCH).done
    assert server.ask("DELETE", f"{at(name)}?gracePeriodSeconds=0").done
    assert "deletionTimestamp" in server.ask("GET", at(name)).body["metadata"]
    assert server.ask("PATCH", at(name), {"metadata": {"finalizers": []}}, MERGE_PATCH).done
    until(lambda: server.ask("GET", at(name)).status == 404, "the pod is gone")


def test_an_eviction_has_no_allocation(server: Server, bound: Json) -> None:
    """Every subresource is matched, including those that a newer API server adds."""
    name = bound["metadata"]["name"]
    metadata: Json = {"name": name, "namespace": "default", "annotations": {GRANTS: "x"}}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    refused(server.ask("POST", f"{at(name, 'eviction')}?dryRun=All", eviction), GRANTS)
    del metadata["annotations"]
    answer = server.ask("POST", at(name, "eviction"), eviction)
    assert answer.done, answer.text


def test_another_scheduler_binds_a_pod_without_a_share(server: Server, pending: Json) -> None:
    """RBAC alone restricts a Binding without annotations."""
    name = pending["metadata"]["name"]
    answer = server.ask("POST", at(name, "binding"), binding(name), user="system:kube-scheduler")
    assert answer.done, answer.text


def test_a_request_cannot_be_changed_through_the_pods_status(server: Server, pending: Json) -> None:
    """The status is not validated; the valid value is written to the pod itself."""
    path = at(pending["metadata"]["name"], "status")
    label, policy = names.LABEL_ISOLATION_PROVIDER, names.ANNOTATION_POLICY
    asked = {"labels": {label: names.ISOLATION_PROVIDER}, "annotations": {policy: "spread"}}
    hints = (
        names.ANNOTATION_ALLOCATE_HINT,
        names.ANNOTATION_JOINT_ALLOCATE,
        names.ANNOTATION_PARTITION_SPEC,
    )

    def refuses(what: str, key: str, value: str | None) -> None:
        answer = server.ask("PATCH", path, {"metadata": {what: {key: value}}}, MERGE_PATCH)
        assert (answer.status, answer.policy) == (403, "gpuslice-allocations"), answer.body
        assert answer.text == (
            f"metadata.{what}[{key}]: forbidden to admin: must not change through pods/status;"
            " change the pod itself"
        )

    for key in (policy, *hints):
        refuses("annotations", key, "junk")
    refuses("labels", label, "mps")
    assert server.ask("PATCH", path.removesuffix("/status"), {"metadata": asked}, MERGE_PATCH).done
    refuses("annotations", policy, None)
    refuses("labels", label, None)
    metadata = {"labels": {"a": "b"}, "annotations": {"example.org/note": "mine"}}
    for said in (metadata, asked):
        body = {"metadata": said, "status": {"message": "it waits"}}
        assert server.ask("PATCH", path, body, MERGE_PATCH).done


def test_a_pod_that_may_run_without_the_agent_is_in_the_operators_namespaces(
    server: Server,
) -> None:
    key = names.ANNOTATION_TOLERATES_MISSING_AGENT
    asked = pod("p", {key: "true"})
    answer = server.ask("POST", f"{at()}?dryRun=All", asked)
    assert (answer.status, answer.policy) == (403, "gpuslice-allocations")
    assert answer.text == (
        f"metadata.annotations[{key}]: invalid value 'true': must be absent in namespace default;"
        " create the pod in gpuslice-system or kube-system"
    )
    for namespace in ("kube-system", names.NAMESPACE):
        path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
        assert server.ask("POST", path, asked).done
