"""kube-scheduler's Lease, written as kube-scheduler writes it, for tests without one."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Final

from gpuslice.contract import names
from lab.cluster.controlplane import ControlPlane
from lab.cluster.fleet import now
from tests.cluster.server import Server

_COLLECTION: Final = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases"
PATH: Final = f"{_COLLECTION}/{names.LEASE_KUBE_SCHEDULER}"
_RENEW_S: Final = 1.0


def write(server: Server, holder: str, **spec: Any) -> None:
    """Changes the Lease, or creates it."""
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": now(), **spec}
    answer = server.patch(PATH, {"spec": spec})
    if answer.status == 404:
        metadata = {"name": names.LEASE_KUBE_SCHEDULER}
        answer = server.ask("POST", _COLLECTION, {"metadata": metadata, "spec": spec})
    assert answer.done, answer.body


def delete(plane: ControlPlane) -> None:
    with Server(plane) as server:
        server.ask("DELETE", PATH)


def holder(server: Server) -> str:
    """ "" if there is none."""
    return str(server.get(PATH).get("spec", {}).get("holderIdentity") or "")


def writer(server: Server) -> str:
    """The Lease's holder, whose Bindings the API server accepts; one is made if there is none."""
    if not (found := holder(server)):
        write(server, found := "tests_1", acquireTime=now())
    return found


class KubeScheduler:
    """The holder of the Lease from `acquire` until `kill` or `release`; renews it meanwhile."""

    def __init__(self, plane: ControlPlane, hostname: str) -> None:
        self.identity = f"{hostname}_1"
        self._plane = plane
        self._end = threading.Event()
        self._renewing: threading.Thread | None = None

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
