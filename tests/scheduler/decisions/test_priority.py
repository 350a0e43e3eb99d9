"""Random orders of preemption, nomination, binds, deletions and restarts.

A GPU never holds more than it has. A nominated pod keeps its place against all pods of lower or
equal priority: once its victims are gone, it fits on its node. At the end nothing stays reserved.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

import pytest

from scheduler.cache import _Pods
from scheduler.core.reservations import Kind
from scheduler.decisions.choice import Choice, choose
from scheduler.decisions.requeue import Unschedulable
from scheduler.decisions.sampling import Sampling
from scheduler.decisions.state import Assumed, State
from scheduler.decisions.unserved import Unserved
from scheduler.decisions.verbs import Verbs
from scheduler.kubernetes import translate
from tests.scheduler import calls, objects

Pod = dict[str, Any]

NODES: Final = calls.names(2)
STEPS: Final = 120
PERCENTS: Final = (25, 30, 50, 60, 80, 100)


class World:
    """The API server's pods, and an extender that watches them. The methods do what users,
    kube-scheduler and the kubelet do."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.pods: dict[str, Pod] = {}
        self.kept: set[str] = set()
        """Pods that were nominated, and whose place no pod of higher priority has taken since."""
        self.created = 0
        self.now_s = 0.0
        self.start()

    def start(self) -> None:
        """Start an extender, which lists the pods."""
        self.state = calls.state(len(NODES), gpus=2)
        self.retries = Unschedulable(self.state)
        unserved = Unserved((), lambda: self.now_s)
        self.watch = _Pods(self.state, self.retries, Sampling(self.state), unserved)
        self.verbs = Verbs(self.state, retries=self.retries)
        self.state.tick(self.now_s)
        self.watch.listed({self.watch.observed(pod) for pod in self.pods.values()})

    def report(self, pod: Pod) -> None:
        self.watch.observed(pod)

    def unbound(self) -> list[Pod]:
        return [pod for pod in self.pods.values() if "nodeName" not in pod["spec"]]

    def bound(self) -> list[Pod]:
        return [pod for pod in self.pods.values() if "nodeName" in pod["spec"]]

    # --- steps

    def create(self) -> None:
        self.created += 1
        percent, priority = self.chance.choice(PERCENTS), self.chance.choice((0, 5, 9))
        gpus: dict[str, Any]
        gpus = {"gpu": 200} if self.chance.random() < 0.1 else {"core": percent, "ratio": percent}
        pod = calls.pod(f"u{self.created}", objects.container("main", **gpus), priority=priority)
        self.pods[pod["metadata"]["uid"]] = pod
        self.report(pod)

    def schedule(self) -> None:
        """Try a pod as kube-scheduler does: the nominated node first, then all nodes."""
        if not (waiting := self.unbound()):
            return
        pod = self.chance.choice(waiting)
        nominated = pod["status"].get("nominatedNodeName")
        for among in ([nominated] if nominated else [], NODES):
            found = calls.filtered(self.verbs, pod, among)["NodeNames"] if among else []
            if found:
                self.verbs.prioritize(calls.arguments(pod, found))
                self.displace(pod["spec"]["priority"])
                if self.chance.random() < 0.8:
                    self.bind(pod, self.chance.choice(found))
                return
        self.preempt(pod)

    def bind(self, pod: Pod, node: str) -> None:
        uid = pod["metadata"]["uid"]
        pending = self.verbs.pending_pod(uid)
        assert pending is not None
        choice = choose(self.state, pending, node, self.verbs.policy(pending), 1)
        if not isinstance(choice, Choice):
            return
        assert choice.placement is not None and choice.annotations is not None
        assumed = Assumed(choice.placement, choice.annotations, 0.0)
        self.state.assume(uid, assumed, f"default/pod-{uid}")
        if self.chance.random() < 0.1:
            self.state.forget(uid)  # the API server has refused the Binding
            return
        pod["metadata"]["annotations"] = dict(choice.annotations)
        pod["spec"]["nodeName"] = node
        self.kept.discard(uid)
        self.report(pod)

    def preempt(self, pod: Pod) -> None:
        """Offer all pods of lower priority, nominate the node, and delete the victims."""
        priority, uid = pod["spec"]["priority"], pod["metadata"]["uid"]
        lower = [each for each in self.bound() if each["spec"]["priority"] < priority]
        offered: dict[str, list[str]] = {}
        for each in lower:
            offered.setdefault(each["spec"]["nodeName"], []).append(each["metadata"]["uid"])
        some = {
            node: self.chance.sample(uids, self.chance.randint(1, len(uids)))
            for node, uids in offered.items()
        }
        found = calls.preempted(self.verbs, pod, some)
        assert len(found) <= 1
        for node, victims in found.items():
            uids = [each["UID"] for each in victims["Pods"]]
            assert uids and {*uids} <= {*offered[node]}
            self.displace(priority)
            if self.chance.random() < 0.1:
                return  # kube-scheduler could not write the nomination
            pod["status"]["nominatedNodeName"] = node
            self.report(pod)
            self.kept.add(uid)
            for each in uids:
                self.pods[each]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
                self.report(self.pods[each])

    def displace(self, priority: int) -> None:
        """A pod of this priority has got a place: those of lower priority may have lost theirs."""
        self.kept = {uid for uid in self.kept if self.pods[uid]["spec"]["priority"] >= priority}

    def remove(self) -> None:
        """End a pod, most often one that terminates."""
        ending = [pod for pod in self.bound() if "deletionTimestamp" in pod["metadata"]]
        pods = ending if ending and self.chance.random() < 0.8 else [*self.pods.values()]
        if pods:
            self.end(self.chance.choice(pods))

    def end(self, pod: Pod) -> None:
        uid = pod["metadata"]["uid"]
        del self.pods[uid]
        self.kept.discard(uid)
        self.watch.deleted(pod)

    def step(self) -> None:
        steps = (self.create, self.schedule, self.schedule, self.schedule, self.remove, self.tick)
        self.chance.choice(steps)()
        if self.chance.random() < 0.02:
            self.start()

    def tick(self) -> None:
        """Let time pass, but not so much that the agents' Leases would expire."""
        self.now_s += self.chance.choice((0.0, 0.1))
        self.state.tick(self.now_s)

    # --- invariants

    def check(self) -> None:
        fleet = self.state.fleet
        assert (fleet.used_bytes <= fleet.total_bytes).all()
        assert (fleet.used_core <= 100).all()
        assert (fleet.reserved_bytes >= 0).all() and (fleet.reserved_core >= 0).all()
        assert (fleet.reserved_bytes <= fleet.total_bytes).all()
        for uid in self.kept:
            assert uid in self.state.reservations._by_owner


def _amounts(state: State) -> Mapping[str, list[int]]:
    return {name: state.fleet.used_bytes[state.fleet.row_of(name)].tolist() for name in NODES}


@pytest.mark.parametrize("seed", [*range(100), 579])
def test_a_nominated_pod_keeps_its_place_and_no_gpu_is_lost(seed: int) -> None:
    """Seed 579: a Binding to a node other than the nominated one fails."""
    world = World(random.Random(seed))
    for _ in range(STEPS):
        world.step()
        world.check()
    fresh = calls.state(len(NODES), gpus=2)
    for pod in world.bound():
        world.watch.observed(pod)
        fresh.observe_pod(translate.pod(pod))
    assert _amounts(world.state) == _amounts(fresh)
    for uid in sorted(world.kept):
        pod = world.pods[uid]
        node = pod["status"]["nominatedNodeName"]
        for each in world.bound():
            if "deletionTimestamp" in each["metadata"]:
                world.end(each)
        assert calls.filtered(world.verbs, pod, [node])["NodeNames"] == [node]
    for pod in [*world.pods.values()]:
        world.end(pod)
    assert not len(world.state.reservations)
    assert not world.state.fleet.used_bytes.any() and not world.state.fleet.reserved_bytes.any()
    assert not world.state.fleet.used_core.any() and not world.state.fleet.reserved_core.any()
    world.state.tick(Kind.SAMPLED.value)
    assert not world.state.reservations.nominated_nodes()
