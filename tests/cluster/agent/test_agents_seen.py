"""Recoveries that only the extender observes: agents that return, and Leases that expired before it
started."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from gpuslice.contract import names
from lab.cluster.api import MERGE_PATCH, Api, ApiError
from lab.cluster.controlplane import ControlPlane
from lab.cluster.fleet import Fleet
from lab.cluster.fleet_objects import Shape
from tests.cluster.admission.requested import asking, pod
from tests.cluster.running import running
from tests.support import until

pytestmark = pytest.mark.cluster

PODS = "/api/v1/namespaces/default/pods"
WITHIN_S = 60.0
"""kube-scheduler by itself retries after five minutes."""


@pytest.fixture
def cleared(installed: ControlPlane) -> Iterator[ControlPlane]:
    yield installed
    installed.remove_pods("default")


def ask(
    plane: ControlPlane, method: str, path: str, body: Any = None, user: str = "admin", **more: Any
) -> Any:
    async def once() -> Any:
        async with Api(plane, user) as api:
            return await api.ask(method, path, body, **more)

    return asyncio.run(once())


def test_an_agent_that_is_ready_again_has_the_waiting_pod_tried(cleared: ControlPlane) -> None:
    half = asking({names.RESOURCE_CORE: "50", names.RESOURCE_MEMORY_RATIO: "50"})
    with Fleet(cleared, Shape(nodes=1, gpus=1).all_nodes()) as fleet, running(cleared) as ours:
        (node,) = fleet.nodes
        fleet.set_ready(node, "the library is not there")
        until(lambda: "AGENT_NOT_READY" in ours.ask("/metrics")[1], "that is seen")
        ask(cleared, "POST", PODS, pod(half))

        def said() -> str:
            conditions = ask(cleared, "GET", f"{PODS}/p")["status"].get("conditions", [])
            return " ".join(each.get("message", "") for each in conditions)

        until(lambda: "GPU node agent is not ready" in said(), "the pod is refused")
        fleet.set_ready(node)

        def bound() -> bool:
            return bool(ask(cleared, "GET", f"{PODS}/p")["spec"].get("nodeName"))

        until(bound, "the pod is bound", WITHIN_S)
        found = ask(cleared, "GET", f"{PODS}/p")
        assert names.ANNOTATION_REQUEUED_AT in found["metadata"]["annotations"]
        assert (
            'gpuslice_scheduler_requeued_pods_total{cause="capacity"} 1.0'
            in ours.ask("/metrics")[1]
        )


def test_another_pod_of_the_name_is_left_alone(cleared: ControlPlane) -> None:
    ask(cleared, "POST", PODS, pod())
    body = {"metadata": {"uid": "another", "annotations": {names.ANNOTATION_REQUEUED_AT: "now"}}}
    with pytest.raises(ApiError) as refused:
        ask(cleared, "PATCH", f"{PODS}/p/status", body, "scheduler", content=MERGE_PATCH)
    assert refused.value.status == 422
    assert names.ANNOTATION_REQUEUED_AT not in ask(cleared, "GET", f"{PODS}/p")["metadata"].get(
        "annotations", {}
    )


def test_a_lease_that_expired_before_the_extender_began_gets_no_pod(cleared: ControlPlane) -> None:
    """A restarted extender must not wait another 40 s to treat a Lease as expired."""
    with Fleet(cleared, Shape(nodes=2, gpus=1).all_nodes()) as fleet:
        killed, alive = sorted(fleet.nodes)
        fleet.kill_agent(killed)
        path = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases/agent-{killed}"
        long_ago = {"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}}
        ask(cleared, "PATCH", path, long_ago, content=MERGE_PATCH)
        with running(cleared):
            for number in range(2):
                whole = asking({names.RESOURCE_GPU: "100"})
                ask(cleared, "POST", PODS, pod(whole, name=f"p{number}"))

            def nodes() -> list[str]:
                found = ask(cleared, "GET", PODS)["items"]
                return [each["spec"]["nodeName"] for each in found if "nodeName" in each["spec"]]

            def refused() -> bool:
                found = ask(cleared, "GET", PODS)["items"]
                conditions = [c for each in found for c in each["status"].get("conditions", [])]
                return any(
                    "GPU node agent has not renewed its Lease" in c.get("message", "")
                    for c in conditions
                )

            until(lambda: bool(nodes()) and refused(), "one is bound, the other refused")
            assert nodes() == [alive]
