"""kube-scheduler's Lease, written as kube-scheduler writes it, for tests without one."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Final, Self

from gpuslice.contract import names
from lab.cluster.controlplane import ControlPlane
from lab.cluster.fleet import now
from tests.cluster.server import MERGE_PATCH, Server

_COLLECTION: Final = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases"
PATH: Final = f"{_COLLECTION}/{names.LEASE_KUBE_SCHEDULER}"
_RENEW_S: Final = 1.0


def write(server: Server, holder: str, **spec: Any) -> None:
    """Changes the Lease, or creates it."""
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": now(), **spec}
    answer = server.ask("PATCH", PATH, {"spec": spec}, MERGE_PATCH)
    if answer.status == 404:
        metadata = {"name": names.LEASE_KUBE_SCHEDULER}
        answer = server.ask("POST", _COLLECTION, {"metadata": metadata, "spec": spec})
    assert answer.done, answer.body


def delete(plane: ControlPlane) -> None:
    with Server(plane) as server:
        server.ask("DELETE", PATH)


def writer(server: Server) -> str:
    """The Lease's holder, whose Bindings the API server accepts; one is made if there is none."""
    holder = str(server.ask("GET", PATH).body.get("spec", {}).get("holderIdentity") or "")
    if not holder:
        write(server, holder := "tests_1", acquireTime=now())
    return holder


class KubeScheduler:
    """The holder of the Lease from `acquire` until `kill` or `release`; renews it meanwhile."""

    def __init__(self, plane: ControlPlane, hostname: str) -> None:
        self.identity = f"{hostname}_1"
        self._plane = plane
        self._end = threading.Event()
        self._renewing: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def acquire(self) -> None:
        with Server(self._plane) as server:
            write(server, self.identity, acquireTime=now())
        self._renewing = threading.Thread(target=self._renew)
        self._renewing.start()

    def release(self) -> None:
        self.kill()
        with Server(self._plane) as server:
            write(server, "", leaseDurationSeconds=1)

    def kill(self) -> None:
        self._end.set()
        if self._renewing is not None:
            self._renewing.join()

    def _renew(self) -> None:
        while not self._end.wait(_RENEW_S):
            with contextlib.suppress(OSError), Server(self._plane) as server:
                write(server, self.identity)
