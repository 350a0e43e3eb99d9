"""At most one process writes, on a real API server, while processes are stopped, killed or
disconnected. The tests write the Lease as kube-scheduler does.

Cases and random runs without a server: tests/scheduler/test_leadership.py. With kube-schedulers:
test_service.py and test_storms.py.
"""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self

import pytest

from gpuslice.contract import names
from lab.cluster.controlplane import ControlPlane
from tests.cluster.admission.scheduler_lease import PATH, KubeScheduler, delete
from tests.cluster.server import Server
from tests.requests.pods import asking, pod
from tests.support import ROOT, until

pytestmark = pytest.mark.cluster

_LEASE_S: Final = 15
_NODE: Final = "node-of-leaders"


class Extender:
    """A process of `tests.cluster.leading`, beside a kube-scheduler of the same host name."""

    def __init__(self, plane: ControlPlane, hostname: str) -> None:
        kubeconfig = str(plane.kubeconfig("scheduler"))
        self.kube_scheduler = KubeScheduler(plane, hostname)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.leading", kubeconfig, hostname],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        self.kube_scheduler.kill()
        self.process.kill()
        self.process.communicate()

    def send(self, *command: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def ask(self, *command: object) -> dict[str, Any]:
        self.send(*command)
        return self.answer()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the process ended: {self.process.wait()}"
        found: dict[str, Any] = json.loads(line)
        return found

    @property
    def is_stopped(self) -> bool:
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "T"


@pytest.fixture
def plane(installed: ControlPlane) -> Iterator[ControlPlane]:
    """Yield a control plane with the manifests' rights and policies, without a Lease."""
    delete(installed)
    yield installed
    delete(installed)


def leads(extender: Extender) -> None:
    identity = extender.kube_scheduler.identity
    until(lambda: bool(extender.ask("may")["may"]), f"the one beside {identity} may write")


def expires(plane: ControlPlane) -> None:
    """Waits as long as another kube-scheduler would."""
    with Server(plane) as server:
        spec = server.ask("GET", PATH).body["spec"]
        expired = datetime.fromisoformat(spec["renewTime"]) + timedelta(seconds=_LEASE_S)
        until(lambda: datetime.now(UTC) > expired, "the Lease has expired")


@pytest.fixture
def pods(plane: ControlPlane) -> Iterator[list[str]]:
    """Two pods, and a node."""
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": _NODE}}
    half = {names.RESOURCE_MEMORY_RATIO: 50}
    made = [pod(asking(half), name=f"pod-{secrets.token_hex(3)}") for _ in range(2)]
    listed = {"apiVersion": "v1", "kind": "List", "items": [node, *made]}
    plane.kubectl("create", "-f", "-", given=json.dumps(listed))
    yield [each["metadata"]["name"] for each in made]
    plane.kubectl("delete", "--force", "--grace-period=0", "-f", "-", given=json.dumps(listed))


def test_what_one_sends_that_was_halted_in_between_is_refused_by_the_api_server(
    plane: ControlPlane, pods: list[str]
) -> None:
    """Stopped after its check of the clock: its POST is sent when another process has already
    bound. Its next check fails."""
    late, next_one = pods
    with Extender(plane, "a") as first, Extender(plane, "b") as second:
        first.kube_scheduler.acquire()
        leads(first)
        assert not second.ask("may")["may"]
        first.send("bind", "default", late, _NODE, True)
        until(lambda: first.is_stopped, "it has halted before its POST")
        first.kube_scheduler.kill()
        expires(plane)
        second.kube_scheduler.acquire()
        leads(second)
        assert second.ask("bind", "default", next_one, _NODE, False)["error"] == ""
        first.process.send_signal(signal.SIGCONT)
        assert "invalid value 'a_1': must be 'b_1', the holder" in first.answer()["error"]
        assert plane.kubectl("get", "pod", late, "-o=jsonpath={.spec.nodeName}") == ""
        assert first.ask("bind", "default", late, _NODE, False)["error"].startswith(
            "gpuslice does not bind here: on standby; b_1 holds the Lease"
        )


def test_without_the_api_server_no_process_may_write(plane: ControlPlane) -> None:
    with Extender(plane, "a") as first:
        first.kube_scheduler.acquire()
        leads(first)
        with plane.apiserver.frozen():
            until(lambda: not first.ask("may")["may"], "it may not write")
            assert "has not renewed the Lease" in first.ask("may")["status"]
        leads(first)
        assert first.ask("may")["listed"] == 1, "no other process could bind meanwhile"


def test_a_write_that_is_late_is_given_up_by_the_server(plane: ControlPlane) -> None:
    """The timeout in its query ends it. The argument of ADR 18 relies on that."""
    with Server(plane) as server:
        late = {"metadata": {"name": "late"}}
        assert server.ask("POST", "/api/v1/namespaces?timeout=1us", late).status == 504
        assert server.ask("GET", "/api/v1/namespaces/late").status == 404
