"""kube-scheduler's choice of pods to preempt for a share, with the extender and the manifests'
rights.

In each test the nodes' totals are exhausted, because it preempts only then. It chooses victims by
these totals, so of GPUs filled with 60 and 40 it takes the 40s if 50 are requested.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import pytest

from gpuslice.contract import names
from gpuslice.contract.allocation import DeviceEntry, decode
from lab.cluster.controlplane import ControlPlane
from lab.cluster.fleet import Fleet
from lab.cluster.fleet_objects import Shape
from lab.cluster.installation import Installation
from tests.cluster.admission.requested import asking, pod
from tests.cluster.running import running
from tests.cluster.server import Server
from tests.support import until

pytestmark = pytest.mark.cluster

Json = dict[str, Any]

_PODS: Final = "/api/v1/namespaces/default/pods"
_CLASSES: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"
_PRIORITIES: Final = {"low": 1, "middle": 10, "high": 1000}
_SPARED: Final = "no candidate node for preemption"
"""kube-scheduler's message if the extender returns no node."""


@pytest.fixture(scope="module")
def ours(installed: ControlPlane) -> Iterator[Installation]:
    with running(installed, "preemption") as started:
        yield started


@pytest.fixture
def server(installed: ControlPlane) -> Iterator[Server]:
    with Server(installed) as asked:
        for name, value in _PRIORITIES.items():
            asked.ask("POST", _CLASSES, {"metadata": {"name": name}, "value": value})
        yield asked
        installed.remove_pods("default")
        for name in _PRIORITIES:
            asked.ask("DELETE", f"{_CLASSES}/{name}")


class Pods:
    """Creates pods and reads their outcome."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def make(self, name: str, percent: int, priority: str, node: str = "") -> None:
        """Deletion is immediate: there is no kubelet."""
        raw = pod(asking({names.RESOURCE_GPU: percent}), name=name)
        raw["spec"] |= {"priorityClassName": priority, "terminationGracePeriodSeconds": 0}
        if node:
            raw["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
        answer = self._server.ask("POST", _PODS, raw)
        assert answer.done, answer.text

    def fill(self, node: str, *shares: tuple[str, int, str]) -> None:
        """One after the other: each takes the fullest GPU on which it fits. node: "" for any."""
        for name, percent, priority in shares:
            self.make(name, percent, priority, node)
            until(partial(self._is_on, name, node), f"{name} is bound")

    def remove(self, name: str) -> None:
        assert self._server.ask("DELETE", f"{_PODS}/{name}").done

    def _is_on(self, name: str, node: str) -> bool:
        return self.node_of(name) == node if node else bool(self.node_of(name))

    def all(self) -> dict[str, Json]:
        """Return the pods by name, without those that are being deleted."""
        listed = self._server.ask("GET", _PODS).body["items"]
        found = {each["metadata"]["name"]: each for each in listed}
        return {
            name: each
            for name, each in found.items()
            if "deletionTimestamp" not in each["metadata"]
        }

    def node_of(self, name: str) -> str:
        return str(self.all()[name]["spec"].get("nodeName", ""))

    def said(self, name: str) -> str:
        conditions = self.all()[name]["status"].get("conditions", ())
        return " ".join(each.get("message", "") for each in conditions)

    def spared(self, preemptor: str, *others: str) -> str:
        """Waits until it is certain that no pod is evicted for the preemptor; returns its
        condition's message."""

        def is_clear() -> bool:
            assert set(others) <= self.all().keys(), "a pod was preempted"
            return _SPARED in self.said(preemptor)

        until(is_clear, "kube-scheduler reports that no pod can be evicted")
        assert set(others) <= self.all().keys()
        assert not self.node_of(preemptor)
        return self.said(preemptor)


@pytest.fixture
def pods(server: Server) -> Pods:
    return Pods(server)


@pytest.fixture
def fleet(installed: ControlPlane, server: Server, nodes: int, gpus: int) -> Iterator[Fleet]:
    shape = Shape(nodes=nodes, gpus=gpus, prefix="preempted-")
    with Fleet(installed, shape.all_nodes()) as entered:
        yield entered


MIXED: Final = (
    *(("sixty-0", 60, "middle"), ("sixty-1", 60, "middle")),
    *(("forty-0", 40, "low"), ("forty-1", 40, "low")),
)
"""Two GPUs of 60 and 40 each."""


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 2)])
def test_no_pod_is_preempted_that_frees_no_gpu(
    fleet: Fleet, pods: Pods, ours: Installation
) -> None:
    """The waiting pod is bound once a pod whose GPU suffices is deleted for another reason."""
    (node,) = fleet.nodes
    pods.fill(node, *MIXED)
    pods.make("urgent", 50, "high")
    said = pods.spared("urgent", *(name for name, _, _ in MIXED))
    assert f"1 Insufficient {names.RESOURCE_GPU}" in said
    assert 'verb="preempt"' in ours.ask("/metrics")[1]
    pods.remove("sixty-0")
    until(lambda: pods.node_of("urgent") == node, "the pod is bound")
    assert {"forty-0", "forty-1"} <= pods.all().keys()


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 1)])
def test_no_pod_is_preempted_on_a_node_that_is_left_out(
    fleet: Fleet, pods: Pods, ours: Installation
) -> None:
    (node,) = fleet.nodes
    pods.fill(node, ("whole", 100, "low"))
    fleet.set_ready(node, "the library is not there")
    until(lambda: "AGENT_NOT_READY" in ours.ask("/metrics")[1], "that is seen")
    pods.make("urgent", 50, "high")
    pods.spared("urgent", "whole")


@pytest.mark.parametrize(("nodes", "gpus"), [(2, 2)])
def test_a_pod_that_frees_a_gpu_is_preempted_and_that_gpu_is_given(
    fleet: Fleet, pods: Pods, ours: Installation
) -> None:
    """The victims on other nodes would have lower priority, but free no GPU."""
    parts, wholes = fleet.nodes
    pods.fill(parts, *MIXED)
    pods.fill(wholes, ("whole-0", 100, "middle"), ("whole-1", 100, "middle"))
    before = pods.all()
    pods.make("urgent", 50, "high")
    until(lambda: pods.node_of("urgent") == wholes, "the pod is bound")
    after = pods.all()
    (victim,) = before.keys() - after.keys()
    assert victim in ("whole-0", "whole-1")
    (had,), (given,) = held(before[victim]), held(after["urgent"])
    assert (given.id, given.minor) == (had.id, had.minor)
    assert given.resources[names.RESOURCE_CORE] == 50


def held(raw: Json) -> Sequence[DeviceEntry]:
    return decode(raw["metadata"]["annotations"][names.ANNOTATION_DEVICE_ALLOCATED]).gpus
