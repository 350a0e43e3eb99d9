"""kube-scheduler's event for a pod that fits by a node's totals, but on none of its GPUs."""

from __future__ import annotations

import pytest

from gpuslice.contract import names
from lab.cluster.controlplane import ControlPlane
from lab.cluster.fleet import Fleet
from lab.cluster.fleet_objects import Shape
from tests.cluster.running import Pods, running
from tests.requests.pods import asking, pod
from tests.support import until

pytestmark = pytest.mark.cluster


def test_the_event_for_a_fragmented_gpu_has_no_internal_error(installed: ControlPlane) -> None:
    """Pods of lower priority, which kube-scheduler could evict, do not change the text."""
    installed.kubectl("create", "priorityclass", "urgent", "--value=1000")
    shape = Shape(nodes=1, gpus=2, prefix="fragmented-")
    with Fleet(installed, shape.all_nodes()), Pods(installed) as pods, running(installed):
        for name in ("one", "two"):
            pods.bound(pods.add(pod(asking({names.RESOURCE_GPU: 60}), name=name)))
        wide = pod(asking({names.RESOURCE_GPU: 80}), name="wide")
        wide["spec"]["priorityClassName"] = "urgent"
        pods.add(wide)
        until(lambda: pods.events("wide"), "kube-scheduler has written an event")
        (said,) = {text for reason, text in pods.events("wide") if reason == "FailedScheduling"}
        begin = "0/1 nodes are available: 1 no GPU with enough free memory and core at once. "
        assert said.startswith(begin)
        assert "1 Preemption is not helpful for scheduling" in said
        assert "expected at least" not in said and "No preemption victims" not in said
    installed.kubectl("delete", "priorityclass", "urgent")
