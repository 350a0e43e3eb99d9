"""The policy's rows on the API server's answers, with a real one beside a real containerd.

tests/cluster/agent has the grants that the agent finds wrong, without a containerd.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuslice.contract import names
from lab.cluster.controlplane import ControlPlane
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cri import Process, Sandbox
from lab.node.lab import Lab
from tests.cluster.admission import scheduler_lease
from tests.cluster.server import Server
from tests.requests.pods import asking, binding, pod
from tests.support import GIB, until

from .scene import HALF, OWN, QUARTER, granted, one, probe, refused

pytestmark = [pytest.mark.node, pytest.mark.cluster]

STATIC = Process(PYTHON_IMAGE, ("/usr/bin/busybox", "sleep", "1000000"))


@dataclass
class Cluster:
    """The lab's node in a cluster. As a kubelet would, `sandbox` creates what the API server
    has."""

    plane: ControlPlane
    lab: Lab
    namespace: str
    node: str
    kubeconfig: Path

    def pod(self, annotations: Mapping[str, str]) -> str:
        """The name of a pod that was bound to the node with these annotations."""
        name = f"p-{secrets.token_hex(4)}"
        half = asking({names.RESOURCE_CORE: 50, names.RESOURCE_MEMORY_RATIO: 50})
        pods = f"/api/v1/namespaces/{self.namespace}/pods"
        with Server(self.plane) as admin, Server(self.plane, "scheduler") as scheduler:
            assert (answer := admin.ask("POST", pods, pod(half, name=name))).done, answer.text
            writer = scheduler_lease.writer(admin)
            body = binding(name, self.node, {**annotations, names.ANNOTATION_WRITER: writer})
            answer = scheduler.ask("POST", f"{pods}/{name}/binding", body)
            assert answer.done, answer.text
        return name

    def sandbox(self, name: str) -> Sandbox:
        with Server(self.plane) as admin:
            there: Any = admin.ask("GET", f"/api/v1/namespaces/{self.namespace}/pods/{name}").body
        return Sandbox(uid=there["metadata"]["uid"], namespace=self.namespace)

    def events(self, name: str) -> str:
        """Return the texts of a pod's events."""
        path = f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events"
        with Server(self.plane) as admin:
            items = admin.ask("GET", path).body["items"]
        return "\n".join(each["note"] for each in items if each["regarding"]["name"] == name)

    def serve(self) -> None:
        self.lab.stop_agent()
        options: list[str | Path] = ["--kubeconfig", self.kubeconfig, "--node-name", self.node]
        self.lab.start_agent(options=options)


@pytest.fixture(scope="module")
def cluster(bare_lab: Lab, installed: ControlPlane) -> Iterator[Cluster]:
    namespace, node = f"test-{secrets.token_hex(4)}", f"node-{secrets.token_hex(4)}"
    made = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}
    installed.kubectl("create", "namespace", namespace)
    installed.kubectl("create", "-f", "-", given=json.dumps(made))
    account = installed.service_account_kubeconfig(names.NAMESPACE, "gpuslice-agent", node)
    cluster = Cluster(installed, bare_lab, namespace, node, account)
    cluster.serve()
    query = ("get", "node", node, "-o=jsonpath={.status.capacity}")
    until(lambda: names.RESOURCE_CORE in installed.kubectl(*query), "the node has its totals")
    yield cluster
    bare_lab.stop_agent()
    installed.remove_namespace(namespace)
    installed.kubectl("delete", "node", node)


def test_the_grant_is_that_of_the_pod_at_the_api_server(cluster: Cluster) -> None:
    lab, annotations = cluster.lab, one(cluster.lab)
    less = cluster.pod(one(lab, QUARTER))
    row = refused("test_the_grant_is_that_of_the_pod_at_the_api_server")
    with lab.pod(less, annotations, of=cluster.sandbox(less)) as made, row:
        made.create("main", OWN)
    name = cluster.pod(annotations)
    with lab.pod(name, annotations, of=cluster.sandbox(name)) as made:
        container = made.run("main", OWN)
        assert probe(container).held_to(HALF)
        assert cluster.events(name) == ""
        # The pod's author can also read there what is reported without a refusal.
        container.remove()
        made.run("main", STATIC)
        until(lambda: "is statically linked" in cluster.events(name), "the event")


def test_without_the_api_server_nothing_changes(cluster: Cluster) -> None:
    """Also if the agent starts then."""
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
