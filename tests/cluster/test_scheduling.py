"""kube-scheduler with the generated configuration, the extender and the manifests' rights.

Shares are packed, although kube-scheduler would spread them, unless a pod asks for spreading. The
weights are in tests/chart/test_configuration.py. kube-scheduler preempts only where a node's totals
are exhausted, and chooses victims by these totals. To place 50 percent on GPUs that hold 60 and 40,
it would evict pods of 40 percent. The extender names a pod of 60 percent instead.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from gpuslice.contract import names
from gpuslice.contract.allocation import DeviceEntry, decode
from lab.cluster.controlplane import ControlPlane
from lab.cluster.fleet import Fleet
from lab.cluster.fleet_objects import Shape
from lab.cluster.installation import Installation
from tests.cluster.running import Pods, running
from tests.requests.pods import Json, asking, pod
from tests.support import until

pytestmark = pytest.mark.cluster

_REPLICA: Final = "generated"


@pytest.fixture(scope="module")
def ours(installed: ControlPlane) -> Iterator[Installation]:
    with running(installed, _REPLICA) as started:
        yield started


# --- packing

Place = Callable[..., str]

_SHAPE: Final = Shape(nodes=4, gpus=2, memory_bytes=40 << 30, prefix="packed-")
_SERVICE: Final = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "packed", "namespace": "default"},
    "spec": {"selector": {"app": "packed"}, "ports": [{"port": 80}]},
}


@pytest.fixture
def place(installed: ControlPlane, ours: Installation) -> Iterator[Place]:
    """Yield a function that creates a pod of a quarter of a GPU and returns its node. Each node has
    64 processors. A Service selects the pods."""
    installed.apply_json(_SERVICE)
    with Fleet(installed, _SHAPE.all_nodes()), Pods(installed) as pods:

        def one(cpu: str, **spec: Any) -> str:
            quarter = {names.RESOURCE_CORE: 25, names.RESOURCE_MEMORY_RATIO: 25, "cpu": cpu}
            raw = pod(asking(quarter), name=f"p-{secrets.token_hex(4)}", labels={"app": "packed"})
            raw["spec"] |= spec
            return str(pods.bound(pods.add(raw))["spec"]["nodeName"])

        yield one
    installed.kubectl("delete", "service", "packed")


def test_the_fuller_gpu_is_taken_unless_a_pod_asks_to_be_spread(
    installed: ControlPlane, place: Place
) -> None:
    """One step of the extender's score outweighs LeastAllocated and BalancedAllocation together.
    kube-scheduler's default spreading of a Service's pods over the nodes is off."""
    constraint = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": "packed"}},
    }
    assert len({place("1", topologySpreadConstraints=[constraint]) for _ in range(4)}) == 4
    full, other, *_ = _SHAPE.node_names()
    for cpu, node in (("20", full), ("20", full), ("1", other)):
        place(cpu, nodeSelector={"kubernetes.io/hostname": node})
    assert place("20") == full
    logs = [each.read_text() for each in installed.directory.glob(f"{_REPLICA}.*.log")]
    assert len(logs) == 2 and not any("orbidden" in log for log in logs)


def test_a_pod_that_counts_in_a_queue_runs_without_kueue(place: Place) -> None:
    """No node has the resource. kube-scheduler and the extender ignore it."""
    assert place("1", containers=[asking({names.RESOURCE_GPU: 25, names.RESOURCE_MILLI: 250})])


# --- preemption

_PRIORITIES: Final = {"low": 1, "middle": 10, "high": 1000}
_MIXED: Final = (
    *(("sixty-0", 60, "middle"), ("sixty-1", 60, "middle")),
    *(("forty-0", 40, "low"), ("forty-1", 40, "low")),
)
"""Shares that fill two GPUs with 60 and 40 percent each."""


class _Pods(Pods):
    def make(self, name: str, percent: int, priority: str, **spec: object) -> None:
        """Create a pod without a grace period, because no kubelet ends it."""
        raw = pod(asking({names.RESOURCE_GPU: percent}), name=name)
        at_once = {"priorityClassName": priority, "terminationGracePeriodSeconds": 0}
        raw["spec"] |= at_once | spec
        self.add(raw)

    def fill(self, node: str, *shares: tuple[str, int, str]) -> None:
        """Create one pod after the other. Each takes the fullest GPU on which it fits."""
        for share in shares:
            self.make(*share, nodeSelector={"kubernetes.io/hostname": node})
            assert self.bound(share[0])["spec"]["nodeName"] == node

    def said(self, name: str) -> str:
        conditions = self.get(name)["status"].get("conditions", ())
        return " ".join(each.get("message", "") for each in conditions)


@pytest.fixture
def pods(installed: ControlPlane) -> Iterator[_Pods]:
    for name, value in _PRIORITIES.items():
        installed.kubectl("create", "priorityclass", name, f"--value={value}")
    with _Pods(installed) as made:
        yield made
    installed.kubectl("delete", "priorityclass", *_PRIORITIES)


@pytest.fixture
def nodes(installed: ControlPlane) -> Iterator[list[str]]:
    with Fleet(installed, Shape(nodes=2, gpus=2, prefix="preempted-").all_nodes()) as fleet:
        yield list(fleet.nodes)


def _gpu(raw: Json) -> DeviceEntry:
    (gpu,) = decode(raw["metadata"]["annotations"][names.ANNOTATION_DEVICE_ALLOCATED]).gpus
    return gpu


def test_a_pod_is_preempted_that_frees_a_gpu_and_no_other(
    nodes: list[str], pods: _Pods, ours: Installation
) -> None:
    """kube-scheduler offers pods of 40 percent, which free no GPU for either pod. No eviction helps
    the late pod, of middle priority, until the last pod of 60 percent is deleted."""
    parts, wholes = nodes
    pods.fill(parts, *_MIXED)
    pods.fill(wholes, ("kept-0", 100, "high"), ("kept-1", 100, "high"))
    there = {"kept-0", "kept-1", *(name for name, _, _ in _MIXED)}
    pods.make("urgent", 50, "high")
    urgent = pods.bound("urgent")
    (victim,) = there - pods.live()
    (sixty,) = {"sixty-0", "sixty-1"} - {victim}
    assert urgent["spec"]["nodeName"] == parts
    assert _gpu(urgent).resources[names.RESOURCE_CORE] == 50
    assert 'verb="preempt"' in ours.ask("/metrics")[1]

    pods.make("late", 80, "middle")
    spared = "no candidate node for preemption"  # because the extender returns no node
    until(lambda: spared in pods.said("late"), "kube-scheduler reports that none can be evicted")
    assert pods.live() >= there - {victim}
    near = _gpu(pods.get(sixty)).id
    pods.delete(sixty)
    assert _gpu(pods.bound("late")).id == near
    (second,) = there - pods.live() - {victim, sixty}
    assert second.startswith("forty")
