"""Applies the manifests, and waits until the API server has begun or ceased to enforce them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from gpuslice.contract import names
from gpuslice.contract.dialects import HAMI_MEMORY, VOLCANO_MEMORY
from lab.cluster import manifests
from lab.cluster.controlplane import ControlPlane
from lab.cluster.manifests import KOORDINATOR, NAMES_POLICY, STOCK
from tests.cluster.server import Json, Server
from tests.requests.pods import HALF, asking, pod
from tests.support import until

_PODS: Final = "/api/v1/namespaces/default/pods?dryRun=All"
_LIMITED: Final = [{"name": names.ENV_MEMORY_LIMIT, "value": "1g"}]

PROBES: Final[dict[str, Json]] = {
    "gpuslice-allocations": pod(annotations={names.ANNOTATION_GRANTS: "{}"}),
    "gpuslice-requests": pod(asking({names.RESOURCE_CORE: 5})),
    "gpuslice-dialects": pod(asking({VOLCANO_MEMORY: 5})),
    "gpuslice-environment": pod(asking({names.RESOURCE_GPU: 5}, env=_LIMITED)),
    NAMES_POLICY: pod(asking({names.RESOURCE_GPU: 5}), scheduler=STOCK),
}
"""For each policy, a pod that only this policy refuses."""


def policies() -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each["spec"] for each in manifests.objects(manifests.POLICY)}


def install(plane: ControlPlane) -> None:
    """Apply all objects with policies that deny, and wait until the API server enforces them."""
    plane.install_kinds()
    plane.apply_json(*manifests.in_force(manifests.objects()))
    with Server(plane) as server:
        for policy, probe in PROBES.items():
            until(partial(_refuses, server, policy, probe), f"{policy} is in force")


def serve(plane: ControlPlane, *others: str) -> None:
    """Change the served schedulerNames, as `helm upgrade` does."""
    served = (names.SCHEDULER_NAME, *others)
    plane.apply_json(*(e for e in manifests.serving(served) if e["kind"] == manifests.POLICY))

    def in_force() -> bool:
        asked = server.ask("POST", _PODS, PROBES[NAMES_POLICY])
        off = (pod(asking({resource: 5})) for resource in (VOLCANO_MEMORY, HAMI_MEMORY))
        return (
            f"must be {' or '.join(served)} in" in asked.text
            and all(_refuses(server, "gpuslice-dialects", each) for each in off)
            and judges_koordinators("gpuslice-requests")
            and judges_koordinators("gpuslice-environment")
        )

    def judges_koordinators(policy: str) -> bool:
        probe = PROBES[policy]
        named = {**probe, "spec": {**probe["spec"], "schedulerName": KOORDINATOR}}
        return _refuses(server, policy, named) == (KOORDINATOR in served)

    with Server(plane) as server:
        until(in_force, f"{', '.join(served)} are served and no other, and all dialects are off")


def _refuses(server: Server, policy: str, raw: Json) -> bool:
    return server.ask("POST", _PODS, raw).policy == policy


# --- a trial

_BINDINGS: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
_REFUSED: Final = {
    "gpuslice-allocations": pod(
        asking(HALF), annotations={names.ANNOTATION_REQUIRED_PLUGINS: '["gpuslice", "other"]'}
    ),
    NAMES_POLICY: pod(asking(HALF), scheduler=STOCK),
}
"""For each policy that `opened` relaxes, a pod that the policy refuses."""


@contextmanager
def opened(plane: ControlPlane) -> Iterator[None]:
    """Relax the policies as a trial in docs/requests.md does. Any account may write allocations and
    name a node during the block."""
    namespace = f"trial-{secrets.token_hex(4)}"
    plane.kubectl("create", "namespace", namespace)
    try:
        _act(plane, namespace, "Warn", "Audit")
        yield
    finally:
        _act(plane, namespace, "Deny")
        plane.remove_namespace(namespace)


def _act(plane: ControlPlane, namespace: str, *actions: str) -> None:
    path, passes = f"/api/v1/namespaces/{namespace}/pods?dryRun=All", "Deny" not in actions
    with Server(plane) as server:
        for name in _REFUSED:
            change = {"spec": {"validationActions": actions}}
            assert server.patch(f"{_BINDINGS}/{name}", change).done
        until(
            lambda: all(server.ask("POST", path, e).done == passes for e in _REFUSED.values()),
            f"{actions} are in force",
        )
