"""The scheduler's rights: kube-scheduler's in Kubernetes, without those listed here by reason, and
this project's own; no others. Then operations that need these rights."""

from __future__ import annotations

import http.client
import secrets
import ssl
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest

from gpuslice.contract import names
from lab.cluster.controlplane import ControlPlane, free_port
from lab.cluster.fleet import Fleet
from lab.cluster.fleet_objects import Shape
from tests.cluster.running import replica
from tests.cluster.server import MERGE_PATCH, Server
from tests.requests.pods import asking, container, pod
from tests.support import until

pytestmark = pytest.mark.cluster

Json = dict[str, Any]
Right = tuple[str, str, str]
"""(API group, resource, verb)"""

_ROLES: Final = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
_READ: Final = ("get", "list", "watch")
HALF: Final = {names.RESOURCE_CORE: 50, names.RESOURCE_MEMORY_RATIO: 50}


def _rights(group: str, resource: str, *verbs: str) -> set[Right]:
    return {(group, resource, verb) for verb in verbs}


OURS_ALONE: Final = {
    *_rights("scheduling.koordinator.sh", "devices", *_READ),
    *_rights(
        "admissionregistration.k8s.io",
        "validatingadmissionpolicybindings",
        *("list", "watch", "patch"),
    ),
}
NOT_OURS: Final[dict[str, set[Right]]] = {
    "the Leases are in a Role, ours by name": {
        *_rights("coordination.k8s.io", "leases", "create", *_READ, "update"),
        *_rights("coordination.k8s.io", "leasecandidates", *_READ, "create", "delete"),
        *_rights("coordination.k8s.io", "leasecandidates", "deletecollection", "patch", "update"),
    },
    "the event that it leads is in that Role": _rights("", "events", "create", "patch", "update"),
    "a pod is bound through pods/binding": _rights("", "bindings", "create"),
    "a condition is patched": _rights("", "pods/status", "update"),
    "no API server of ours has it": _rights("extensions", "replicasets", *_READ),
    "a claim is read whole": _rights("resource.k8s.io", "resourceclaims/status", *_READ),
}
"""Rights of Kubernetes' own kube-scheduler that this one does without, by the reason."""


def _of(server: Server, *roles: str) -> set[Right]:
    return {
        (group, resource, verb)
        for role in roles
        for rule in server.ask("GET", f"{_ROLES}/{role}").body["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_schedulers_rights_are_upstreams_and_ours(server: Server) -> None:
    ours = _of(server, names.SCHEDULER_NAME)
    upstream = _of(server, "system:kube-scheduler", "system:volume-scheduler")
    assert ours - upstream == OURS_ALONE
    assert upstream - ours == set().union(*NOT_OURS.values())


# --- operations


@pytest.fixture
def node(installed: ControlPlane) -> Iterator[str]:
    """Create a node while the scheduler runs under the manifests' rights."""
    nodes = Shape(nodes=1, gpus=2, prefix="rights-").all_nodes()
    with Fleet(installed, nodes), replica(installed, "rights") as running:
        yield nodes[0].name
        assert "forbidden" not in running.kube_scheduler.log.read_text()


class CreatedObjects:
    """Objects deleted after the test, despite finalizers: no controller here would remove those."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._paths: list[str] = []

    def make(self, collection: str, raw: Json) -> str:
        """Returns the path of the created object."""
        answer = self._server.ask("POST", collection, raw)
        assert answer.done, answer.text
        self._paths.append(f"{collection}/{raw['metadata']['name']}")
        return self._paths[-1]

    def end(self) -> None:
        for path in reversed(self._paths):
            self._server.ask("PATCH", path, {"metadata": {"finalizers": []}}, MERGE_PATCH)
            self._server.ask("DELETE", f"{path}?gracePeriodSeconds=0")


@pytest.fixture
def made(server: Server) -> Iterator[CreatedObjects]:
    listed = CreatedObjects(server)
    yield listed
    listed.end()


_DEFAULT: Final = "/api/v1/namespaces/default"
_STORAGE: Final = "/apis/storage.k8s.io/v1"
_DEVICES: Final = "/apis/resource.k8s.io/v1"
_CLAIMS: Final = f"{_DEVICES}/namespaces/default/resourceclaims"


def _named(prefix: str, **more: Any) -> Json:
    return {"metadata": {"name": f"{prefix}-{secrets.token_hex(4)}"}, **more}


def _with_volume(made: CreatedObjects) -> str:
    """A pod of half a GPU with a volume that is bound on first use: the claim's path."""
    mode = "WaitForFirstConsumer"
    kind = _named("c", provisioner="example.org/disks", volumeBindingMode=mode)
    made.make(f"{_STORAGE}/storageclasses", kind)
    wanted = {
        "storageClassName": kind["metadata"]["name"],
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    claim = _named("v", spec=wanted)
    path = made.make(f"{_DEFAULT}/persistentvolumeclaims", claim)
    raw = pod(asking(HALF), name=claim["metadata"]["name"])
    volume = {"claimName": claim["metadata"]["name"]}
    raw["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": volume}]
    made.make(f"{_DEFAULT}/pods", raw)
    return path


def test_a_volume_that_waits_for_its_first_consumer_gets_the_node(
    server: Server, node: str, made: CreatedObjects
) -> None:
    path = _with_volume(made)

    def chosen() -> str:
        annotations = server.ask("GET", path).body["metadata"].get("annotations", {})
        return str(annotations.get("volume.kubernetes.io/selected-node", ""))

    until(lambda: chosen() == node, "the volume is asked for on the node")


def _node_of(server: Server, path: str) -> str:
    return str(server.ask("GET", path).body["spec"].get("nodeName", ""))


def test_devices_that_a_driver_publishes_are_allocated_to_pods_under_our_name(
    server: Server, node: str, made: CreatedObjects
) -> None:
    """Pods request them by a claim, and by the name of a resource, for which kube-scheduler creates
    a claim."""
    driver, resource = "driver.example.org", f"example.org/dev-{secrets.token_hex(4)}"
    kind = _named("c", spec={"extendedResourceName": resource})
    made.make(f"{_DEVICES}/deviceclasses", kind)
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": "d0"}, {"name": "d1"}]
    published = {"driver": driver, "pool": pool, "nodeName": node, "devices": devices}
    made.make(f"{_DEVICES}/resourceslices", _named("s", spec=published))
    exactly = {"deviceClassName": kind["metadata"]["name"]}
    claim = _named("d", spec={"devices": {"requests": [{"name": "r", "exactly": exactly}]}})
    claimed = made.make(_CLAIMS, claim)
    name = claim["metadata"]["name"]
    raw = pod(container(resources={"claims": [{"name": "d"}]}), name=name)
    raw["spec"]["resourceClaims"] = [{"name": "d", "resourceClaimName": name}]
    first = made.make(f"{_DEFAULT}/pods", raw)
    second = made.make(f"{_DEFAULT}/pods", pod(asking({resource: 1}), name=f"{name}-2"))
    until(lambda: _node_of(server, first) == node, "the pod with a claim is bound")
    until(lambda: _node_of(server, second) == node, "the pod that names the resource is bound")
    status = server.ask("GET", claimed).body["status"]
    assert [each["name"] for each in status["reservedFor"]] == [name]
    own = server.ask("GET", second).body["status"]["extendedResourceClaimStatus"]
    path = f"{_CLAIMS}/{own['resourceClaimName']}"
    try:
        assert server.ask("GET", path).body["status"]["allocation"]
    finally:
        server.ask("PATCH", path, {"metadata": {"finalizers": []}}, MERGE_PATCH)
        server.ask("DELETE", path)


def test_kube_schedulers_metrics_are_read_as_rbac_allows(
    installed: ControlPlane, server: Server, made: CreatedObjects
) -> None:
    port = free_port()
    running = installed.start_kube_scheduler(
        None,
        installed.kubeconfig("scheduler"),
        "kube-scheduler-metrics",
        *("--authentication-skip-lookup=true", f"--secure-port={port}", "--bind-address=127.0.0.1"),
    )
    token = installed.token("tenant")
    try:
        until(lambda: _scraped(port, token) == 403, "the reader is known, and has no right")
        rules: Sequence[Json] = [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
        role = _named("m", rules=rules)
        made.make(_ROLES, role)
        bound = _named(
            "m",
            roleRef={
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": role["metadata"]["name"],
            },
            subjects=[{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "tenant"}],
        )
        made.make(_ROLES.replace("clusterroles", "clusterrolebindings"), bound)
        until(lambda: _scraped(port, token) == 200, "the reader's right is checked again")
        assert _scraped(port, "unknown") == 401
    finally:
        running.kill()


def _scraped(port: int, token: str) -> int:
    """The status; 0 while no process listens."""
    unverified = ssl._create_unverified_context()  # self-signed, created at startup
    link = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=unverified)
    try:
        link.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"})
        return link.getresponse().status
    except OSError:
        return 0
    finally:
        link.close()
