"""At most one process writes, on a real API server, while processes are stopped, killed,
disconnected, or called at the same time.

Cases and random runs without a server: tests/scheduler/leadership/test_election.py.
"""

from __future__ import annotations

import json
import secrets
import signal
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from gpuslice.contract import names
from lab.cluster import manifests
from lab.cluster.controlplane import ControlPlane
from scheduler.leadership.lease import PATH
from tests.cluster.admission.requested import asking, pod
from tests.cluster.server import Server
from tests.support import ROOT, until

pytestmark = pytest.mark.cluster

LEASE = ("lease", names.LEASE_SCHEDULER, f"-n={names.NAMESPACE}")


class Candidate:
    """A process of `tests.cluster.leading`."""

    def __init__(self, plane: ControlPlane) -> None:
        kubeconfig = str(plane.kubeconfig("scheduler"))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.leading", kubeconfig],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.identity = self._answer()["identity"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def send(self, *command: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def ask(self, *command: object) -> dict[str, Any]:
        self.send(*command)
        return self._answer()

    def may(self) -> bool:
        return bool(self.ask("may")["may"])

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def proceed(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def _answer(self) -> dict[str, Any]:
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
    """A control plane with the manifests' rights and policies, and a Lease without holder."""
    installed.kubectl("delete", *LEASE, "--ignore-not-found")
    installed.apply_json(*manifests.objects("Lease"))
    yield installed
    installed.kubectl("delete", *LEASE, "--ignore-not-found")


def holds(candidate: Candidate) -> None:
    until(candidate.may, f"{candidate.identity} may write")


def test_a_killed_holder_is_replaced_after_its_lease(plane: ControlPlane) -> None:
    with Candidate(plane) as first, Candidate(plane) as second:
        first.ask("keep_asking")
        holds(first)
        first.kill()
        second.ask("keep_asking")
        assert not second.may()
        holds(second)
        assert second.ask("may")["listed"] == 1


def test_a_halted_holder_does_not_write_after_it_continues(plane: ControlPlane) -> None:
    with Candidate(plane) as first, Candidate(plane) as second:
        first.ask("keep_asking")
        holds(first)
        first.stop()
        until(lambda: first.is_stopped, "it is stopped")
        first.send("may")
        second.ask("keep_asking")
        holds(second)
        first.proceed()
        assert first._answer()["may"] is False
        assert second.may()


@pytest.fixture
def node(plane: ControlPlane) -> Iterator[str]:
    name = f"node-{secrets.token_hex(3)}"
    made = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    plane.kubectl("create", "-f", "-", given=json.dumps(made))
    yield name
    plane.kubectl("delete", "node", name)


def a_pod(plane: ControlPlane) -> str:
    name = f"pod-{secrets.token_hex(3)}"
    made = pod(asking({names.RESOURCE_MEMORY_RATIO: 50}), name=name)
    plane.kubectl("create", "-f", "-", given=json.dumps(made))
    return name


@pytest.fixture
def pods(plane: ControlPlane) -> Iterator[list[str]]:
    made = [a_pod(plane) for _ in range(3)]
    yield made
    plane.kubectl("delete", "pod", "--force", "--grace-period=0", *made)


def test_what_one_sends_that_was_halted_in_between_is_refused_by_the_api_server(
    plane: ControlPlane, node: str, pods: list[str]
) -> None:
    """Stopped after its check of the clock: its POST is sent when another process has already
    bound."""
    early, late, next_one = pods
    with Candidate(plane) as first, Candidate(plane) as second:
        first.ask("keep_asking")
        holds(first)

        assert first.ask("bind", "default", early, node, False)["error"] == ""
        first.send("bind", "default", late, node, True)
        until(lambda: first.is_stopped, "it has halted before its POST")
        second.ask("keep_asking")
        holds(second)
        assert second.ask("bind", "default", next_one, node, False)["error"] == ""
        first.proceed()
        error = first._answer()["error"]
        assert f"'{first.identity} " in error and f"'{second.identity} " in error
        bound = plane.kubectl("get", "pod", late, "-o=jsonpath={.spec.nodeName}")
        assert bound == ""
        assert first.ask("bind", "default", late, node, False)["error"].startswith(
            "gpuslice does not bind here: on standby; another replica holds the Lease"
        )


def test_without_the_api_server_no_process_may_write(plane: ControlPlane) -> None:
    with Candidate(plane) as first:
        first.ask("keep_asking")
        holds(first)
        with plane.apiserver.frozen():
            until(lambda: not first.may(), "it may not write")
            assert "could not be renewed in time" in first.ask("may")["status"]
        holds(first)


def test_a_lease_deleted_by_hand_lets_no_second_process_bind(
    plane: ControlPlane,
) -> None:
    with Candidate(plane) as first, Candidate(plane) as second:
        first.ask("keep_asking")
        holds(first)
        plane.kubectl("delete", *LEASE)
        second.ask("keep_asking")
        until(lambda: not first.may(), "the earlier holder notices that it is gone")
        until(lambda: first.may() or second.may(), "one of them has it again")
        assert not (first.may() and second.may())


def test_renewals_do_not_wait_behind_bindings(plane: ControlPlane) -> None:
    """They have their own flow at the API server, with the priority of leader elections."""
    context = ssl.create_default_context(cafile=str(plane.ca))

    def flow(path: str) -> str:
        request = urllib.request.Request(plane.server + path)
        request.add_header("Authorization", f"Bearer {plane.token('scheduler')}")
        handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        with urllib.request.build_opener(*handlers).open(request, timeout=60) as answer:
            return str(answer.headers["X-Kubernetes-PF-FlowSchema-UID"])

    uid = plane.kubectl("get", "flowschema", "gpuslice-leases", "-o=jsonpath={.metadata.uid}")
    until(lambda: flow(PATH) == uid, "the flow is in force")
    assert flow("/api/v1/pods?limit=1") != uid


def test_a_write_that_is_late_is_given_up_by_the_server(plane: ControlPlane) -> None:
    """The timeout in its query ends it. The argument of ADR 18 relies on that."""
    with Server(plane) as server:
        late = {"metadata": {"name": "late"}}
        assert server.ask("POST", "/api/v1/namespaces?timeout=1us", late).status == 504
        assert server.ask("GET", "/api/v1/namespaces/late").status == 404
