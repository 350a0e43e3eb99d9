"""The scheduler's account has kube-scheduler's rights and its own, and no others.

A table lists the rights of Kubernetes' kube-scheduler that this account lacks, with the reasons.
The other tests perform operations that need rights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Final

import pytest

from gpuslice.contract import names
from lab.cluster.controlplane import ControlPlane
from lab.cluster.fleet import Fleet
from lab.cluster.fleet_objects import Shape
from tests.cluster.running import replica
from tests.cluster.server import Server
from tests.requests.pods import HALF, asking, container, pod
from tests.support import until

pytestmark = pytest.mark.cluster

Right = tuple[str, str, str]
"""(API group, resource, verb)"""
Make = Callable[..., str]

_ROLES: Final = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
_READ: Final = ("get", "list", "watch")


def _rights(group: str, resource: str, *verbs: str) -> set[Right]:
    return {(group, resource, verb) for verb in verbs}


_BINDINGS: Final = "validatingadmissionpolicybindings"
OURS_ALONE: Final = {
    *_rights("scheduling.koordinator.sh", "devices", *_READ),
    *_rights("admissionregistration.k8s.io", _BINDINGS, "list", "watch", "patch"),
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
"""Rights of Kubernetes' kube-scheduler that gpuslice's scheduler lacks, by the reason for it."""


def _of(server: Server, *roles: str) -> set[Right]:
    return {
        (group, resource, verb)
        for role in roles
        for rule in server.get(f"{_ROLES}/{role}")["rules"]
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
    nodes = Shape(nodes=1, gpus=2, prefix="rights-").all_nodes()
    with Fleet(installed, nodes), replica(installed, "rights") as running:
        yield nodes[0].name
        assert "forbidden" not in running.kube_scheduler.log.read_text()


@pytest.fixture
def make(server: Server) -> Iterator[Make]:
    """Yield a function that creates an object for the test and returns the object's path."""
    with ExitStack() as stack:

        def one(collection: str, name: str, **more: Any) -> str:
            raw = {"metadata": {"name": name}, **more}
            return stack.enter_context(server.made(collection, raw))

        yield one


_DEFAULT: Final = "/api/v1/namespaces/default"
_DEVICES: Final = "/apis/resource.k8s.io/v1"
_CLAIMS: Final = f"{_DEVICES}/namespaces/default/resourceclaims"


def _pod(make: Make, name: str, main: dict[str, Any], **spec: Any) -> str:
    return make(f"{_DEFAULT}/pods", name, spec=pod(main)["spec"] | spec)


def test_a_volume_that_waits_for_its_first_consumer_gets_the_node(
    server: Server, node: str, make: Make
) -> None:
    kind: dict[str, Any] = {"volumeBindingMode": "WaitForFirstConsumer"}
    make("/apis/storage.k8s.io/v1/storageclasses", "late", provisioner="example.org/d", **kind)
    wanted = {
        "storageClassName": "late",
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    claim = make(f"{_DEFAULT}/persistentvolumeclaims", "v", spec=wanted)
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "v"}}
    _pod(make, "of-volume", asking(HALF), volumes=[volume])
    selected = "volume.kubernetes.io/selected-node"

    def chosen() -> object:
        return server.get(claim)["metadata"].get("annotations", {}).get(selected)

    until(lambda: chosen() == node, "the volume is asked for on the node")


def test_devices_that_a_driver_publishes_are_allocated_to_pods_under_our_name(
    server: Server, node: str, make: Make
) -> None:
    """A pod requests a device by a ResourceClaim, or by an extended resource. For the extended
    resource kube-scheduler makes a ResourceClaim."""
    make(f"{_DEVICES}/deviceclasses", "c", spec={"extendedResourceName": "example.org/dev"})
    published = {
        "driver": "driver.example.org",
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "nodeName": node,
        "devices": [{"name": "d0"}, {"name": "d1"}],
    }
    make(f"{_DEVICES}/resourceslices", "s", spec=published)
    request = {"name": "r", "exactly": {"deviceClassName": "c"}}
    claimed = make(_CLAIMS, "d", spec={"devices": {"requests": [request]}})
    by_claim = container(resources={"claims": [{"name": "d"}]})
    claims = [{"name": "d", "resourceClaimName": "d"}]
    first = _pod(make, "by-claim", by_claim, resourceClaims=claims)
    second = _pod(make, "by-name", asking({"example.org/dev": 1}))

    def are_bound() -> bool:
        return all(server.get(path)["spec"].get("nodeName") == node for path in (first, second))

    until(are_bound, "both pods are bound")
    assert [each["name"] for each in server.get(claimed)["status"]["reservedFor"]] == ["by-claim"]
    own = server.get(second)["status"]["extendedResourceClaimStatus"]
    path = f"{_CLAIMS}/{own['resourceClaimName']}"
    try:
        assert server.get(path)["status"]["allocation"]
    finally:
        server.remove(path)
