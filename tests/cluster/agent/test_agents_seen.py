"""An agent that becomes ready, as only the extender observes it."""

from __future__ import annotations

import pytest

from gpuslice.contract import names
from lab.cluster.controlplane import ControlPlane
from lab.cluster.fleet import Fleet
from lab.cluster.fleet_objects import Shape
from tests.cluster.admission.requested import HALF, asking, pod
from tests.cluster.running import Pods, running
from tests.support import until

pytestmark = pytest.mark.cluster

WITHIN_S = 60.0
"""kube-scheduler by itself retries after five minutes."""


def test_an_agent_that_is_ready_again_has_the_waiting_pod_tried(installed: ControlPlane) -> None:
    fleet = Fleet(installed, Shape(nodes=1, gpus=1).all_nodes())
    with fleet, running(installed) as ours, Pods(installed) as pods:
        (node,) = fleet.nodes
        fleet.set_ready(node, "the library is not there")
        until(lambda: "AGENT_NOT_READY" in ours.ask("/metrics")[1], "that is seen")
        pods.add(pod(asking(HALF)))

        def said() -> str:
            conditions = pods.get("p")["status"].get("conditions", [])
            return " ".join(each.get("message", "") for each in conditions)

        until(lambda: "GPU node agent is not ready" in said(), "the pod is refused")
        fleet.set_ready(node)
        until(lambda: pods.is_bound("p"), "the pod is bound", WITHIN_S)
        assert names.ANNOTATION_REQUEUED_AT in pods.get("p")["metadata"]["annotations"]
        assert (
            'gpuslice_scheduler_requeued_pods_total{cause="capacity"} 1.0'
            in ours.ask("/metrics")[1]
        )
