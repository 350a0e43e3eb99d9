"""Writes kube-scheduler's Lease as kube-scheduler does, for tests that run no kube-scheduler."""

from __future__ import annotations

from typing import Any, Final

from gpuslice.contract import names
from lab.cluster.controlplane import ControlPlane
from lab.cluster.fleet import now
from tests.cluster.server import Server

_COLLECTION: Final = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases"
_PATH: Final = f"{_COLLECTION}/{names.LEASE_KUBE_SCHEDULER}"


def write(server: Server, holder: str, **spec: Any) -> None:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": now(), **spec}
    answer = server.patch(_PATH, {"spec": spec})
    if answer.status == 404:
        metadata = {"name": names.LEASE_KUBE_SCHEDULER}
        answer = server.ask("POST", _COLLECTION, {"metadata": metadata, "spec": spec})
    assert answer.done, answer.body


def delete(plane: ControlPlane) -> None:
    with Server(plane) as server:
        server.ask("DELETE", _PATH)


def holder(server: Server) -> str:
    """Return the Lease's holder, or "" if the Lease has none."""
    return str(server.get(_PATH).get("spec", {}).get("holderIdentity") or "")


def writer(server: Server) -> str:
    """Return the Lease's holder, whose Bindings the API server accepts. Set one if none exists."""
    if not (found := holder(server)):
        write(server, found := "tests_1", acquireTime=now())
    return found
