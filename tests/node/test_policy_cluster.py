"""The policy's rows on the API server's answers, with a real one, its rights and policies, beside a
real containerd; and that containers are unaffected while it does not answer."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gpuslice.contract import names
from lab.cluster.controlplane import ControlPlane
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cri import Process, Sandbox
from lab.node.lab import Lab
from tests.cluster.admission import scheduler_lease
from tests.cluster.admission.requested import asking, binding, pod
from tests.cluster.conftest import installed
from tests.cluster.opening import opened
from tests.cluster.server import MERGE_PATCH, Server
from tests.support import until

from .conftest import GIB, probe
from .rows import HALF, OWN, one, refused

__all__ = ["installed"]

pytestmark = [pytest.mark.node, pytest.mark.cluster]

Json = dict[str, Any]


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

    def pod(self, annotations: Mapping[str, str], made_there: bool = False) -> str:
        """The name of a pod that was bound to the node with these annotations, or created with its
        node."""
        name = f"p-{secrets.token_hex(4)}"
        half = asking({names.RESOURCE_CORE: 50, names.RESOURCE_MEMORY_RATIO: 50})
        asked = pod(half, name=name, annotations=dict(annotations if made_there else {}))
        if made_there:
            asked["spec"]["nodeName"] = self.node
        pods = f"/api/v1/namespaces/{self.namespace}/pods"
        with Server(self.plane) as admin, Server(self.plane, "scheduler") as scheduler:
            assert (answer := admin.ask("POST", pods, asked)).done, answer.text
            if made_there:
                return name
            writer = scheduler_lease.writer(admin)
            body = binding(name, self.node, {**annotations, names.ANNOTATION_WRITER: writer})
            answer = scheduler.ask("POST", f"{pods}/{name}/binding", body)
            assert answer.done, answer.text
        return name

    def get(self, name: str) -> Json:
        with Server(self.plane) as admin:
            return admin.ask("GET", f"/api/v1/namespaces/{self.namespace}/pods/{name}").body

    def annotate(self, name: str, annotations: Mapping[str, str]) -> None:
        change = {"metadata": {"annotations": dict(annotations)}}
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}"
        with Server(self.plane) as admin:
            assert (answer := admin.ask("PATCH", path, change, MERGE_PATCH)).done, answer.text

    def sandbox(self, name: str) -> Sandbox:
        return Sandbox(uid=self.get(name)["metadata"]["uid"], namespace=self.namespace)

    def removed(self, name: str) -> bool:
        return "deletionTimestamp" in self.get(name)["metadata"]

    def said(self, name: str) -> str:
        """Return the texts of a pod's events."""
        path = f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events"
        with Server(self.plane) as admin:
            items = admin.ask("GET", path).body["items"]
        return "\n".join(each["note"] for each in items if each["regarding"]["name"] == name)

    def serve(self) -> None:
        self.lab.stop_agent()
        options: list[str | Path] = ["--kubeconfig", self.kubeconfig, "--node-name", self.node]
        self.lab.start_agent(options=options)


@pytest.fixture
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


def test_a_grant_that_the_api_server_has(cluster: Cluster) -> None:
    annotations = one(cluster.lab)
    name = cluster.pod(annotations)
    of = replace(cluster.sandbox(name), pid="POD")
    with cluster.lab.pod(name, annotations, of=of) as pod:
        container = pod.run("main", OWN)
        assert probe(container).held_to(HALF)
        time.sleep(2)  # a grant that it does not confirm is noticed by then
        assert not cluster.removed(name)
        assert cluster.said(name) == ""
        # The pod's author can also read there what is reported without a refusal.
        container.remove()
        pod.run("main", STATIC)
        until(lambda: "is statically linked" in cluster.said(name), "the event")


def test_a_grant_that_the_api_server_does_not_have(cluster: Cluster) -> None:
    annotations = one(cluster.lab)
    row = "a_grant_that_the_api_server_does_not_have"
    name = cluster.pod(one(cluster.lab, 10 * GIB))
    with cluster.lab.pod(name, annotations, of=cluster.sandbox(name)) as pod, refused(row):
        pod.create("main", OWN)
    assert not cluster.removed(name)


def test_a_grant_that_no_scheduler_wrote(cluster: Cluster) -> None:
    """The first was not bound; the grant of the second is rewritten while it runs."""
    annotations = one(cluster.lab)
    row = "a_grant_that_no_scheduler_wrote"
    with opened(cluster.plane):
        forged = cluster.pod(annotations, made_there=True)
        with (
            cluster.lab.pod(forged, annotations, of=cluster.sandbox(forged)) as pod,
            refused(row),
        ):
            pod.create("main", OWN)
        assert not cluster.removed(forged)
        name = cluster.pod(annotations)
        with cluster.lab.pod(name, annotations, of=cluster.sandbox(name)) as pod:
            assert probe(pod.run("main", OWN)).held_to(HALF)
            time.sleep(2)  # a grant that is not confirmed is noticed by then
            assert not cluster.removed(name)
            cluster.annotate(name, one(cluster.lab, HALF + GIB))
            changed = "was changed after the pod was bound"
            until(lambda: changed in cluster.said(name), "the event")
            assert not cluster.removed(name)


def test_a_grant_of_a_gpu_that_was_full(cluster: Cluster) -> None:
    """The later one is first at the node, which has capacity for it; it is refused all the same."""
    annotations, more = one(cluster.lab), one(cluster.lab, HALF + GIB)
    first, second = cluster.pod(annotations), cluster.pod(more)
    of_second = cluster.sandbox(second)
    with (
        cluster.lab.pod(second, more, of=of_second) as pod,
        refused("a_grant_of_a_gpu_that_was_full"),
    ):
        pod.create("main", OWN)
    with cluster.lab.pod(first, annotations, of=cluster.sandbox(first)) as pod:
        assert probe(pod.run("main", OWN)).held_to(HALF)
    assert not cluster.removed(first) and not cluster.removed(second)


def test_without_the_api_server_nothing_changes(cluster: Cluster) -> None:
    """Also if the agent starts then."""
    lab, annotations = cluster.lab, one(cluster.lab)
    cluster.plane.apiserver.kill()
    try:
        with lab.pod("unknown", annotations) as pod:
            assert probe(pod.run("main", OWN)).held_to(HALF)
            for restarted in (False, True):
                if restarted:
                    cluster.serve()
                full = refused("without_the_api_server_nothing_changes")
                with lab.pod("more", one(lab, HALF + GIB)) as other, full:
                    other.create("main", OWN)
            with lab.pod("quarter", one(lab, 10 * GIB)) as other:
                assert probe(other.run("main", OWN)).held_to(10 * GIB)
    finally:
        cluster.plane.restart_apiserver()
