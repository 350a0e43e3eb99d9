"""kube-scheduler's choice of pods to preempt for a share, with the extender and the manifests'
rights.

In each test the nodes' totals are exhausted, because it preempts only then. It chooses victims by
these totals, so of GPUs filled with 60 and 40 it takes the 40s if 50 are requested.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import pytest

from contract import names
from contract.allocation import DeviceEntry, decode
from lab.cluster import manifests
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
_RECEIVED_S: Final = 3.0
_SPARED: Final = "no candidate node for preemption"
"""kube-scheduler's message if the extender returns no node."""


@pytest.fixture(scope="module", params=["always", "off"])
def ours(installed: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Installation]:
    """With nominations and without."""
    lease = ("lease", names.LEASE_SCHEDULER, f"-n={names.NAMESPACE}")
    installed.kubectl("delete", *lease, "--ignore-not-found")
    installed.apply_json(*manifests.objects("Lease"))
    with running(installed, "preemption", nominate=request.param) as started:
        yield started
    installed.kubectl("delete", *lease)


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
        """By name, without pods that are being deleted."""
        listed = self._server.ask("GET", _PODS).body["items"]
        found = {each["metadata"]["name"]: each for each in listed}
        return {
            name: each
            for name, each in found.items()
            if "deletionTimestamp" not in each["metadata"]
        }

    def node_of(self, name: str) -> str:
        return str(self.all()[name]["spec"].get("nodeName", ""))

    def nominated(self) -> dict[str, str]:
        """The nominated node of each unbound pod that has one."""
        found = {name: raw["status"].get("nominatedNodeName") for name, raw in self.all().items()}
        return {name: node for name, node in found.items() if node}

    def bound_at(self, name: str) -> tuple[str, int]:
        """Sorts pods by their binding; those that are not bound come last."""
        raw = self.all()[name]
        conditions = {each["type"]: each for each in raw["status"].get("conditions", ())}
        scheduled = conditions.get("PodScheduled", {})
        if scheduled.get("status") != "True":
            return "~", 0
        return scheduled["lastTransitionTime"], int(raw["metadata"]["resourceVersion"])

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
    """On other nodes the victims would have lower priority, but free no GPU."""
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


def show_candidates(pods: Pods, fleet: Fleet, ours: Installation) -> None:
    """kube-scheduler tries pods once it has received all nodes; each after the extender received it
    by its own watch: from a pod that it does not know yet it records no candidates."""
    there = [f"at-{node}" for node in fleet.nodes]
    for name, node in zip(there, fleet.nodes, strict=True):
        pods.fill(node, (name, 100, "low"))
    firsts = [f"first-{number}" for number in range(4)]
    for name in firsts:
        with ours.kube_scheduler.frozen():
            pods.make(name, 100, "low")
            time.sleep(_RECEIVED_S)
        until(partial(pods.node_of, name), f"{name} is bound")
    for name in (*there, *firsts):
        pods.remove(name)


LOW: Final = tuple(f"low-{number:02}" for number in range(24))


@pytest.mark.parametrize("ours", ["always"], indirect=True)
@pytest.mark.parametrize(("nodes", "gpus"), [(3, 8)])
def test_a_late_pod_of_high_priority_overtakes_nominated_ones(
    fleet: Fleet, pods: Pods, ours: Installation
) -> None:
    """GPUs are reserved for nominated pods of low priority when it arrives. kube-scheduler tries it
    next, and it gets one of them. When kube-scheduler continues, it receives the pods one after the
    other, and tries some before the last."""
    show_candidates(pods, fleet, ours)
    with ours.kube_scheduler.frozen():
        for name in LOW:
            pods.make(name, 100, "low")
        # Every 10 s one is left to kube-scheduler's search.
        until(lambda: len(pods.nominated()) >= len(LOW) // 2, "most are nominated")
        pods.make("urgent", 100, "high")
    until(lambda: pods.node_of("urgent"), "it is bound")
    bound = sorted((*LOW, "urgent"), key=pods.bound_at)
    assert bound.index("urgent") < len(LOW) // 2
    until(lambda: sum(bool(pods.node_of(name)) for name in LOW) == 23, "the others are bound")


@pytest.mark.parametrize("ours", ["always"], indirect=True)
@pytest.mark.parametrize(("nodes", "gpus"), [(3, 8)])
def test_nominations_of_an_extender_that_was_killed_hold(
    fleet: Fleet, pods: Pods, ours: Installation
) -> None:
    """The next one adopts them: pods are bound on the nodes nominated for them, but for those that
    kube-scheduler tries before the extender has the Lease: it clears their nominations."""
    show_candidates(pods, fleet, ours)
    with ours.kube_scheduler.frozen():
        for name in LOW[:12]:
            pods.make(name, 100, "low")
        until(lambda: len(pods.nominated()) >= 6, "most are nominated")
        nominated = pods.nominated()
        ours.extender.kill()
        ours.start_extender()
        ours.wait_ready()
    until(lambda: all(pods.node_of(name) for name in LOW[:12]), "all are bound")
    kept = sum(pods.node_of(name) == node for name, node in nominated.items())
    assert kept >= len(nominated) - 4


def held(raw: Json) -> Sequence[DeviceEntry]:
    return decode(raw["metadata"]["annotations"][names.ANNOTATION_DEVICE_ALLOCATED]).gpus
