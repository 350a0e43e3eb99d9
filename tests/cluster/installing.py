"""Applies the manifests, and waits until the API server enforces the policies."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from gpuslice.contract import names
from gpuslice.contract.dialects import HAMI_MEMORY, VOLCANO_MEMORY
from lab.cluster import manifests
from lab.cluster.controlplane import ControlPlane
from lab.cluster.manifests import KOORDINATOR, NAMES_POLICY
from tests.cluster.server import Server
from tests.support import until

_PODS: Final = "/api/v1/namespaces/default/pods?dryRun=All"

PROBES: Final[dict[str, dict[str, Any]]] = {
    "gpuslice-allocations": {"annotations": {names.ANNOTATION_GRANTS: "{}"}},
    "gpuslice-requests": {"limits": {names.RESOURCE_CORE: 5}},
    "gpuslice-dialects": {"limits": {VOLCANO_MEMORY: 5}},
    "gpuslice-environment": {
        "limits": {names.RESOURCE_GPU: 5},
        "env": [{"name": names.ENV_MEMORY_LIMIT, "value": "1g"}],
    },
    NAMES_POLICY: {"limits": {names.RESOURCE_GPU: 5}, "scheduler": "default-scheduler"},
}
"""By policy, a pod that only this policy refuses."""


def policies() -> dict[str, dict[str, Any]]:
    """The chart's admission policies: the spec of each by name."""
    return {each["metadata"]["name"]: each["spec"] for each in manifests.objects(manifests.POLICY)}


def install(plane: ControlPlane) -> None:
    """Applies all objects, with the policies in force, and waits until the API server does so."""
    plane.install_kinds()
    plane.apply_json(*manifests.in_force(manifests.objects()))
    with Server(plane) as server:
        for policy, probe in PROBES.items():
            until(partial(_refuses, server, policy, probe), f"{policy} is in force")


def serve(plane: ControlPlane, *others: str) -> None:
    """Changes the served schedulerNames, as `helm upgrade` does."""
    served = (names.SCHEDULER_NAME, *others)
    rendered = manifests.serving(served) if others else manifests.objects()
    plane.apply_json(*(each for each in rendered if each["kind"] == manifests.POLICY))
    refused = _probe(**PROBES[NAMES_POLICY])
    with Server(plane) as server:
        until(
            lambda: f"must be {' or '.join(served)} in" in server.ask("POST", _PODS, refused).text,
            f"{', '.join(served)} are served, and no other",
        )
        for resource in (VOLCANO_MEMORY, HAMI_MEMORY):
            off = partial(_refuses, server, "gpuslice-dialects", {"limits": {resource: 5}})
            until(off, f"the dialect of {resource} is off")
        for policy in ("gpuslice-requests", "gpuslice-environment"):
            probe = {**PROBES[policy], "scheduler": KOORDINATOR}
            refuses = partial(_refuses, server, policy, probe)
            what = f"{policy} validates the pods of the served names"
            until(partial(_is, refuses, KOORDINATOR in served), what)


def _is(found: Callable[[], bool], wanted: bool) -> bool:
    return found() == wanted


def _refuses(server: Server, policy: str, probe: dict[str, Any]) -> bool:
    return server.ask("POST", _PODS, _probe(**probe)).policy == policy


def _probe(
    annotations: dict[str, str] | None = None,
    limits: dict[str, int] | None = None,
    env: list[dict[str, str]] | None = None,
    scheduler: str = names.SCHEDULER_NAME,
) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "none",
        "env": env or [],
        "resources": {"limits": limits or {}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe", "annotations": annotations or {}},
        "spec": {"schedulerName": scheduler, "containers": [container]},
    }
