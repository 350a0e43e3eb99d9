"""Only the scheduler can write allocations, by any request, at the real API server."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from gpuslice.contract import grants, names, required_plugins
from lab.cluster.controlplane import ControlPlane
from tests.cluster.admission import requested, scheduler_lease
from tests.cluster.admission.requested import workloads
from tests.cluster.server import MERGE_PATCH, STRATEGIC_PATCH, Answer, Server
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
    asked = requested.asking({names.RESOURCE_MEMORY_RATIO: ratio})
    return requested.pod(asked, scheduler=scheduler, name=name, annotations=annotations or {})


def binding(name: str, annotations: dict[str, str] | None = None) -> Json:
    return requested.binding(name, _NODE, annotations)


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


def _put(server: Server, live: Json, annotations: dict[str, str], sub: str = "") -> Answer:
    changed = copy.deepcopy(live)
    changed["metadata"]["annotations"] = annotations
    return server.ask("PUT", at(live["metadata"]["name"], sub), changed)


def _patch(server: Server, live: Json, annotations: dict[str, str], sub: str = "") -> Answer:
    """A merge patch also names what it removes."""
    gone = dict.fromkeys(live["metadata"].get("annotations", {}), None)
    body = {"metadata": {"annotations": {**gone, **annotations}}}
    return server.ask("PATCH", at(live["metadata"]["name"], sub), body, MERGE_PATCH)


def _strategic(server: Server, live: Json, annotations: dict[str, str], sub: str = "") -> Answer:
    gone = dict.fromkeys(live["metadata"].get("annotations", {}), None)
    body = {"metadata": {"annotations": {**gone, **annotations}}}
    return server.ask("PATCH", at(live["metadata"]["name"], sub), body, STRATEGIC_PATCH)


Write = Callable[[Server, Json, dict[str, str]], Answer]

UPDATES: Final[dict[str, Write]] = {
    "PUT pods": _put,
    "PATCH pods": _patch,
    "PUT pods/status": lambda s, live, a: _put(s, live, a, "status"),
    "PATCH pods/status": lambda s, live, a: _patch(s, live, a, "status"),
    "strategic PATCH pods/status": lambda s, live, a: _strategic(s, live, a, "status"),
}
"""Ways to change the annotations of an existing pod."""

BINDINGS: Final[dict[str, Write]] = {
    "POST pods/binding": lambda s, live, a: s.ask(
        "POST", at(live["metadata"]["name"], "binding"), binding(live["metadata"]["name"], a)
    ),
    "POST bindings": lambda s, live, a: s.ask(
        "POST", "/api/v1/namespaces/default/bindings", binding(live["metadata"]["name"], a)
    ),
}
HARMLESS: Final[dict[str, Write]] = {
    "PUT pods/resize": lambda s, live, a: _put(s, live, a, "resize"),
    "PATCH pods/resize": lambda s, live, a: _patch(s, live, a, "resize"),
    "PUT pods/ephemeralcontainers": lambda s, live, a: _put(s, live, a, "ephemeralcontainers"),
    "PATCH pods/ephemeralcontainers": lambda s, live, a: _patch(s, live, a, "ephemeralcontainers"),
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
def test_a_pod_without_a_request_is_not_created_with_an_allocation(
    server: Server, key: str
) -> None:
    made = pod("forged", {key: ALLOCATION.get(key, OURS)}, ratio=0)
    refused(server.ask("POST", at(), made), key)


def test_only_the_named_scheduler_may_set_an_allocation(server: Server) -> None:
    """JSON can spell a key in more than one way."""
    key, author = (
        names.ANNOTATION_DEVICE_ALLOCATED,
        "system:serviceaccount:kube-system:job-controller",
    )
    for text in ('{"gpu":[]}', '{"\\u0067p\\u0075":[]}'):
        forged = pod("forged", {key: text}, scheduler="default-scheduler", ratio=0)
        refused(server.ask("POST", at(), forged, user=author), key, author)


def test_a_pod_that_names_its_node_is_not_created_with_an_allocation(server: Server) -> None:
    """The policy on schedulerNames refuses its creator, too."""
    made = pod("forged", dict(ALLOCATION))
    made["spec"]["nodeName"] = _NODE
    assert server.ask("POST", at(), made).status in (403, 422)


@pytest.mark.parametrize("kind", workloads(pod("p")))
def test_a_template_with_an_allocation_is_refused(server: Server, kind: str) -> None:
    """Its pods would be refused later, unnoticed. On the workload itself the annotation has no
    meaning."""
    key = names.ANNOTATION_GRANTS
    path, workload = workloads(pod("p", {key: "x"}))[kind]
    refused(server.ask("POST", f"{path}?dryRun=All", workload), key)
    path, workload = workloads(pod("p"))[kind]
    workload["metadata"]["annotations"] = {key: "x"}
    assert server.ask("POST", f"{path}?dryRun=All", workload).done


def test_an_allocation_cannot_be_added_to_a_template(server: Server) -> None:
    key = names.ANNOTATION_GRANTS
    path, workload = workloads(pod("p"))["Deployment"]
    assert server.ask("POST", path, workload).done
    try:
        template = {"metadata": {"annotations": {key: "x"}}}
        body: Json = {"spec": {"replicas": 2, "template": template}}
        refused(server.ask("PATCH", f"{path}/w", body, MERGE_PATCH), key)
        del body["spec"]["template"]
        assert server.ask("PATCH", f"{path}/w", body, MERGE_PATCH).done
    finally:
        server.ask("DELETE", f"{path}/w")


@pytest.mark.parametrize("key", RESERVED)
@pytest.mark.parametrize("way", [*UPDATES, *BINDINGS])
def test_an_allocation_cannot_be_added_to_a_pending_pod(
    server: Server, pending: Json, way: str, key: str
) -> None:
    value = "x" if way in UPDATES else ALLOCATION.get(key, OURS)
    refused({**UPDATES, **BINDINGS}[way](server, pending, {key: value}), key)


@pytest.mark.parametrize("key", [names.ANNOTATION_DEVICE_ALLOCATED, names.ANNOTATION_GRANTS])
@pytest.mark.parametrize("way", UPDATES)
def test_an_allocation_of_a_bound_pod_cannot_be_changed_or_removed(
    server: Server, bound: Json, way: str, key: str
) -> None:
    there = bound["metadata"]["annotations"]
    refused(UPDATES[way](server, bound, {**there, key: "x"}), key)
    without = {name: text for name, text in there.items() if name != key}
    refused(UPDATES[way](server, bound, without), key)
    assert server.ask("GET", at(bound["metadata"]["name"])).body["metadata"]["annotations"] == there


@pytest.mark.parametrize("way", HARMLESS)
def test_no_other_subresource_changes_an_allocation(server: Server, bound: Json, way: str) -> None:
    there = bound["metadata"]["annotations"]
    HARMLESS[way](server, bound, {**there, names.ANNOTATION_GRANTS: "x"})
    HARMLESS[way](server, bound, {})
    assert server.ask("GET", at(bound["metadata"]["name"])).body["metadata"]["annotations"] == there


def test_what_the_scheduler_binds_has_its_allocation(bound: Json) -> None:
    assert bound["metadata"]["annotations"] == ALLOCATION
    assert bound["spec"]["nodeName"] == _NODE


@pytest.mark.parametrize("way", UPDATES)
def test_an_update_that_leaves_allocations_unchanged_is_admitted(
    server: Server, bound: Json, way: str
) -> None:
    """Any account may change labels, other annotations and conditions."""
    there = bound["metadata"]["annotations"]
    answer = UPDATES[way](server, bound, {**there, "example.org/note": "mine"})
    assert answer.done, answer.text
    assert answer.body["metadata"]["annotations"]["example.org/note"] == "mine"


def test_a_kubelet_reports_and_ends_its_pod(server: Server, bound: Json) -> None:
    """Its status, its containers' statuses, the condition of an eviction; then its deletion."""
    name = bound["metadata"]["name"]
    user, group = f"system:node:{_NODE}", "system:nodes"
    condition = {"type": "Ready", "status": "True"}
    status = {"phase": "Running", "podIP": "10.0.0.9", "conditions": [condition]}
    said = {"metadata": {"uid": bound["metadata"]["uid"]}, "status": status}
    answer = server.ask("PATCH", at(name, "status"), said, STRATEGIC_PATCH, user, group)
    assert answer.done, answer.text
    ended = {"status": {"phase": "Failed", "reason": "Evicted"}}
    assert server.ask("PATCH", at(name, "status"), ended, STRATEGIC_PATCH, user, group).done
    assert server.ask(
        "DELETE", f"{at(name)}?gracePeriodSeconds=0", None, MERGE_PATCH, user, group
    ).done


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


def test_an_eviction(server: Server, bound: Json) -> None:
    name = bound["metadata"]["name"]
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": "default"},
        "deleteOptions": {"gracePeriodSeconds": 0},
    }
    answer = server.ask("POST", at(name, "eviction"), eviction)
    assert answer.done, answer.text


def test_no_subresource_of_a_pod_may_carry_an_allocation(server: Server, bound: Json) -> None:
    """Every subresource is matched, including those that a newer API server adds."""
    name, key = bound["metadata"]["name"], names.ANNOTATION_GRANTS
    metadata = {"name": name, "namespace": "default", "annotations": {key: "x"}}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    refused(server.ask("POST", f"{at(name, 'eviction')}?dryRun=All", eviction), key)


def test_another_scheduler_binds_a_pod_without_a_share(server: Server, pending: Json) -> None:
    """RBAC alone restricts a Binding without annotations."""
    name = pending["metadata"]["name"]
    answer = server.ask("POST", at(name, "binding"), binding(name), user="system:kube-scheduler")
    assert answer.done, answer.text


# --- requests

ASKED: Final = {
    **{
        f"metadata.annotations[{key}]": {"annotations": {key: "junk"}}
        for key in (
            names.ANNOTATION_POLICY,
            names.ANNOTATION_ALLOCATE_HINT,
            names.ANNOTATION_JOINT_ALLOCATE,
            names.ANNOTATION_PARTITION_SPEC,
        )
    },
    f"metadata.labels[{names.LABEL_ISOLATION_PROVIDER}]": {
        "labels": {names.LABEL_ISOLATION_PROVIDER: "mps"}
    },
}


@pytest.mark.parametrize("what", ASKED)
def test_a_request_cannot_be_changed_through_the_pods_status(
    server: Server, pending: Json, what: str
) -> None:
    """The status is not validated; the valid value is written to the pod itself."""
    path = at(pending["metadata"]["name"], "status")
    answer = server.ask("PATCH", path, {"metadata": ASKED[what]}, MERGE_PATCH)
    assert (answer.status, answer.policy) == (403, "gpuslice-allocations"), answer.body
    assert answer.text == (
        f"{what}: forbidden to admin: must not change through pods/status; change the pod itself"
    )
    metadata = {"labels": {"a": "b"}, "annotations": {"example.org/note": "mine"}}
    assert server.ask("PATCH", path, {"metadata": metadata}, MERGE_PATCH).done


def test_a_request_cannot_be_removed_through_the_pods_status(server: Server, pending: Json) -> None:
    name = pending["metadata"]["name"]
    label, annotation = names.LABEL_ISOLATION_PROVIDER, names.ANNOTATION_POLICY
    asked = {"labels": {label: names.ISOLATION_PROVIDER}, "annotations": {annotation: "spread"}}
    assert server.ask("PATCH", at(name), {"metadata": asked}, MERGE_PATCH).done
    for gone in ({"labels": {label: None}}, {"annotations": {annotation: None}}):
        answer = server.ask("PATCH", at(name, "status"), {"metadata": gone}, MERGE_PATCH)
        assert answer.policy == "gpuslice-allocations", answer.body
    said = {"metadata": asked, "status": {"message": "it waits"}}
    assert server.ask("PATCH", at(name, "status"), said, MERGE_PATCH).done


# --- the annotation of the agent's start requirements


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


@pytest.mark.parametrize("way", [*UPDATES, *BINDINGS])
def test_the_toleration_of_a_missing_agent_cannot_be_added_later(
    server: Server, pending: Json, way: str
) -> None:
    key = names.ANNOTATION_TOLERATES_MISSING_AGENT
    answer = {**UPDATES, **BINDINGS}[way](server, pending, {key: "true"})
    assert (answer.status, answer.policy) == (403, "gpuslice-allocations"), answer.body
    assert "must be absent in namespace default; create the pod in" in answer.text
