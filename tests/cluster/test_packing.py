"""kube-scheduler with the generated configuration and the extender: shares are packed although it
would spread them, unless a pod asks for that. The weights: tests/chart/test_configuration.py."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from gpuslice.contract import names
from lab.cluster.controlplane import ControlPlane
from lab.cluster.fleet import Fleet
from lab.cluster.fleet_objects import Shape
from tests.cluster.running import Pods, running
from tests.requests.pods import asking, pod

pytestmark = pytest.mark.cluster

Place = Callable[..., str]

_REPLICA: Final = "packing"
_NODES: Final = 4
_SHAPE: Final = Shape(nodes=_NODES, gpus=2, memory_bytes=40 << 30, prefix="packed-")
_SERVICE: Final = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "packed", "namespace": "default"},
    "spec": {"selector": {"app": "packed"}, "ports": [{"port": 80}]},
}


@pytest.fixture(scope="module")
def scheduled(installed: ControlPlane) -> Iterator[ControlPlane]:
    """Nodes of 64 processors, the scheduler, and a Service that selects the pods."""
    installed.apply_json(_SERVICE)
    with Fleet(installed, _SHAPE.all_nodes()), running(installed, _REPLICA):
        yield installed
    installed.kubectl("delete", "service", "packed")


@pytest.fixture
def place(scheduled: ControlPlane) -> Iterator[Place]:
    """Creates a pod of a quarter of a GPU and returns its node."""
    with Pods(scheduled) as pods:

        def one(cpu: str = "8", **spec: Any) -> str:
            quarter = {names.RESOURCE_CORE: 25, names.RESOURCE_MEMORY_RATIO: 25, "cpu": cpu}
            raw = pod(asking(quarter), name=f"p-{secrets.token_hex(4)}", labels={"app": "packed"})
            raw["spec"] |= spec
            return str(pods.bound(pods.add(raw))["spec"]["nodeName"])

        yield one


def test_the_fuller_gpu_is_taken_although_all_else_is_against_it(place: Place) -> None:
    """One step of the extender's scores outweighs LeastAllocated and BalancedAllocation together,
    and the default spreading over nodes is off: this node already has more of the Service's
    pods."""
    full, other, *_ = _SHAPE.node_names()
    for _ in range(2):
        place(cpu="20", nodeSelector={"kubernetes.io/hostname": full})
    place(cpu="1", nodeSelector={"kubernetes.io/hostname": other})
    assert place(cpu="20") == full


def test_a_pod_may_ask_to_be_spread(scheduled: ControlPlane, place: Place) -> None:
    """Neither program is forbidden anything by the manifests' rights."""
    constraint = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": "packed"}},
    }
    nodes = {place(topologySpreadConstraints=[constraint]) for _ in range(_NODES)}
    assert len(nodes) == _NODES
    logs = list(scheduled.directory.glob(f"{_REPLICA}.*.log"))
    assert len(logs) == 2
    for log in logs:
        assert "orbidden" not in log.read_text(), log.name
