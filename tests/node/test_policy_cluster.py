"""The policy's rows about the API server's answers, with a real API server and a real containerd.

tests/cluster/agent tests wrong grants, without a containerd.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuslice.contract import names
from lab.cluster.controlplane import ControlPlane
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cri import Process, Sandbox
from lab.node.lab import Lab
from tests.cluster.admission import scheduler_lease
from tests.cluster.agent.node import Node, Pods, events, pod_name, pod_of
from tests.cluster.server import Server
from tests.support import GIB, until

from .scene import HALF, OWN, QUARTER, WHOLE, granted, one, probe, refused

pytestmark = [pytest.mark.node, pytest.mark.cluster]

STATIC = Process(PYTHON_IMAGE, ("/usr/bin/busybox", "sleep", "1000000"))


@dataclass
class Cluster:
    plane: ControlPlane
    lab: Lab
    namespace: str
    node: Node
    kubeconfig: Path

    def serve(self) -> None:
        self.lab.stop_agent()
        options: list[str | Path] = ["--kubeconfig", self.kubeconfig, "--node-name", self.node.name]
        self.lab.start_agent(options=options)


@pytest.fixture(scope="module")
def cluster(bare_lab: Lab, installed: ControlPlane) -> Iterator[Cluster]:
    namespace, name = f"test-{secrets.token_hex(4)}", f"node-{secrets.token_hex(4)}"
    installed.kubectl("create", "namespace", namespace)
    with Server(installed) as admin:
        node = Node(admin, name)
        node.make()
        account = installed.service_account_kubeconfig(names.NAMESPACE, names.AGENT, name)
        cluster = Cluster(installed, bare_lab, namespace, node, account)
        cluster.serve()
        node.have(WHOLE)
    yield cluster
    bare_lab.stop_agent()
    installed.remove_namespace(namespace)
    installed.kubectl("delete", "node", name)


def test_the_grant_is_that_of_the_pod_at_the_api_server(cluster: Cluster) -> None:
    """The test creates the sandboxes of the API server's pods, as a kubelet would."""
    lab, plane, annotations = cluster.lab, cluster.plane, one(cluster.lab)
    with Server(plane) as admin, Server(plane, "scheduler") as scheduler:
        pods = Pods(admin, scheduler, cluster.namespace)

        def bound(written: Mapping[str, str]) -> tuple[str, Sandbox]:
            path, writer = pods.make(), scheduler_lease.writer(admin)
            pods.bound(path, cluster.node, {**written, names.ANNOTATION_WRITER: writer})
            return path, Sandbox(uid=pod_of(admin, path).uid, namespace=cluster.namespace)

        path, sandbox = bound(one(lab, QUARTER))
        row = refused("test_the_grant_is_that_of_the_pod_at_the_api_server")
        with lab.pod(pod_name(path), annotations, of=sandbox) as made, row:
            made.create("main", OWN)
        path, sandbox = bound(annotations)
        with lab.pod(pod_name(path), annotations, of=sandbox) as made:
            container = made.run("main", OWN)
            assert probe(container).held_to(HALF)
            assert events(admin, path) == []
            # A report without a refusal is an event, too, which the pod's author can read.
            container.remove()
            made.run("main", STATIC)
            until(lambda: "is statically linked" in str(events(admin, path)), "the event")


def test_without_the_api_server_nothing_changes(cluster: Cluster) -> None:
    """An agent that starts without the API server decides the same."""
    lab = cluster.lab
    cluster.plane.apiserver.kill()
    try:
        with granted(lab, name="unknown") as container:
            assert probe(container).held_to(HALF)
            for restarted in (False, True):
                if restarted:
                    cluster.serve()
                full = refused("test_without_the_api_server_nothing_changes")
                with lab.pod("more", one(lab, HALF + GIB)) as other, full:
                    other.create("main", OWN)
            with granted(lab, size=QUARTER, name="quarter") as container:
                assert probe(container).held_to(QUARTER)
    finally:
        cluster.plane.restart_apiserver()
