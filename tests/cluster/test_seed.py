"""The example document that the product started from: its pod, applied unmodified."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from contract import names
from lab.cluster.controlplane import ControlPlane
from lab.cluster.fleet import Fleet
from lab.cluster.fleet_objects import Shape
from lab.cluster.manifests import KOORDINATOR
from lab.demo import seed
from tests.cluster.installing import serve
from tests.cluster.running import running
from tests.support import until

pytestmark = pytest.mark.cluster

WHOLE = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "whole", "namespace": "default"},
    "spec": {
        "schedulerName": names.SCHEDULER_NAME,
        "containers": [
            {
                "name": "main",
                "image": "busybox",
                "resources": {
                    "limits": {names.RESOURCE_GPU: "100"},
                    "requests": {names.RESOURCE_GPU: "100"},
                },
            }
        ],
    },
}


@pytest.fixture
def served(installed: ControlPlane) -> Iterator[ControlPlane]:
    """Serves the names that the document uses; its pods are deleted after the test."""
    serve(installed, KOORDINATOR)
    yield installed
    installed.remove_pods("default")
    serve(installed)


def test_the_documents_pod_gets_the_annotation_that_it_shows(served: ControlPlane) -> None:
    nodes = Shape(nodes=1, gpus=2, memory_bytes=23040 << 20).all_nodes()
    with Fleet(served, nodes) as fleet, running(served):
        served.kubectl("apply", "-f", "-", given=json.dumps(WHOLE))
        assert _bound(served, "whole").startswith('{"gpu":[{"minor":0,')
        served.kubectl("apply", "-f", seed.PATH)
        gpu = fleet.gpu("node-0000", 1).uuid
        assert _bound(served, seed.NAME) == seed.shown(gpu)


def _bound(plane: ControlPlane, name: str) -> str:
    """The allocation of the pod, once it has a node."""

    def pod() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(plane.kubectl("get", "pod", name, "-o", "json"))
        return found

    until(lambda: bool(pod()["spec"].get("nodeName")), f"{name} is bound")
    text: str = pod()["metadata"]["annotations"][names.ANNOTATION_DEVICE_ALLOCATED]
    return text
