"""kube-scheduler's choice of pods to preempt for a share, with the extender and the manifests'
rights.

In each test the nodes' totals are exhausted, because it preempts only then. It chooses victims by
these totals, so of GPUs filled with 60 and 40 it takes the 40s if 50 are requested.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest

from gpuslice.contract import names
from gpuslice.contract.allocation import DeviceEntry, decode
from lab.cluster.controlplane import ControlPlane
from lab.cluster.fleet import Fleet
from lab.cluster.fleet_objects import Shape
from lab.cluster.installation import Installation
from tests.cluster.running import Pods, running
from tests.requests.pods import asking, pod
from tests.support import until

pytestmark = pytest.mark.cluster

Json = dict[str, Any]

_PRIORITIES: Final = {"low": 1, "middle": 10, "high": 1000}
_SPARED: Final = "no candidate node for preemption"
"""kube-scheduler's message if the extender returns no node."""


@pytest.fixture(scope="module")
def ours(installed: ControlPlane) -> Iterator[Installation]:
    with running(installed, "preemption") as started:
        yield started


class _Pods(Pods):
    def make(self, name: str, percent: int, priority: str, node: str = "") -> None:
        """Deletion is immediate: there is no kubelet."""
        raw = pod(asking({names.RESOURCE_GPU: percent}), name=name)
        raw["spec"] |= {"priorityClassName": priority, "terminationGracePeriodSeconds": 0}
        if node:
            raw["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
        self.add(raw)

    def fill(self, node: str, *shares: tuple[str, int, str]) -> None:
        """One after the other: each takes the fullest GPU on which it fits."""
        for name, percent, priority in shares:
            self.make(name, percent, priority, node)
            assert self.bound(name)["spec"]["nodeName"] == node

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
def fleet(installed: ControlPlane, nodes: int) -> Iterator[Fleet]:
    with Fleet(installed, Shape(nodes=nodes, gpus=2, prefix="preempted-").all_nodes()) as entered:
        yield entered


MIXED: Final = (
    *(("sixty-0", 60, "middle"), ("sixty-1", 60, "middle")),
    *(("forty-0", 40, "low"), ("forty-1", 40, "low")),
)
"""Two GPUs of 60 and 40 each."""


@pytest.mark.parametrize("nodes", [1])
def test_no_pod_is_preempted_that_frees_no_gpu(
    fleet: Fleet, pods: _Pods, ours: Installation
) -> None:
    """The waiting pod is bound once a pod whose GPU suffices is deleted for another reason."""
    (node,) = fleet.nodes
    pods.fill(node, *MIXED)
    pods.make("urgent", 50, "high")
    until(lambda: _SPARED in pods.said("urgent"), "kube-scheduler reports that none can be evicted")
    assert pods.live() >= {name for name, _, _ in MIXED}
    assert f"1 Insufficient {names.RESOURCE_GPU}" in pods.said("urgent")
    assert 'verb="preempt"' in ours.ask("/metrics")[1]
    pods.delete("sixty-0")
    assert pods.bound("urgent")["spec"]["nodeName"] == node
    assert {"forty-0", "forty-1"} <= pods.live()


@pytest.mark.parametrize("nodes", [2])
def test_a_pod_that_frees_a_gpu_is_preempted_and_that_gpu_is_given(
    fleet: Fleet, pods: _Pods, ours: Installation
) -> None:
    """The victims on other nodes would have lower priority, but free no GPU."""
    parts, wholes = fleet.nodes
    pods.fill(parts, *MIXED)
    whole = {name: 100 for name in ("whole-0", "whole-1")}
    pods.fill(wholes, *((name, percent, "middle") for name, percent in whole.items()))
    before = {name: held(pods.get(name)) for name in whole}
    pods.make("urgent", 50, "high")
    urgent = pods.bound("urgent")
    assert urgent["spec"]["nodeName"] == wholes
    (victim,) = {*whole, *(name for name, _, _ in MIXED)} - pods.live()
    (had,), (given,) = before[victim], held(urgent)
    assert (given.id, given.minor) == (had.id, had.minor)
    assert given.resources[names.RESOURCE_CORE] == 50


def held(raw: Json) -> Sequence[DeviceEntry]:
    return decode(raw["metadata"]["annotations"][names.ANNOTATION_DEVICE_ALLOCATED]).gpus
