"""The API server's pods, an extender that watches them, and kube-scheduler's part of preemption.

`Cluster` has what users, the kubelet and every kube-scheduler do. `Totals` chooses nodes and
victims by the nodes' totals, as kube-scheduler does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from gpuslice.contract import names
from scheduler.cache import _Pods
from scheduler.decisions.choice import Choice, choose
from scheduler.decisions.requeue import Unschedulable
from scheduler.decisions.sampling import Sampling
from scheduler.decisions.state import Assumed
from scheduler.decisions.unserved import Unserved
from scheduler.decisions.verbs import Verbs
from scheduler.kubernetes import translate
from scheduler.kubernetes.leases import agent_lease
from tests.scheduler import calls, objects

Pod = dict[str, Any]

ENDING: Final = "deletionTimestamp"


def uid_of(pod: Pod) -> str:
    return str(pod["metadata"]["uid"])


def node_of(pod: Pod) -> str:
    """Return the pod's node; "" until it is bound."""
    return str(pod["spec"].get("nodeName", ""))


def priority_of(pod: Pod) -> int:
    return int(pod["spec"]["priority"])


def nominated(pod: Pod) -> str:
    return str(pod["status"].get("nominatedNodeName", ""))


class Cluster:
    """Nodes n0, n1, ... with the same number of GPUs."""

    def __init__(self, nodes: int, gpus: int) -> None:
        self.nodes = calls.names(nodes)
        self.gpus = gpus
        self.pods: dict[str, Pod] = {}
        self.budgets: dict[str, Mapping[str, Any]] = {}
        """PodDisruptionBudgets, by their label `app`."""
        self.now_s = 0.0
        self.renewals = 0
        self.start()

    def start(self) -> None:
        """Start an extender, which lists all objects."""
        self.state = calls.state(len(self.nodes), self.gpus)
        self.retries = Unschedulable(self.state)
        unserved = Unserved((), lambda: self.now_s)
        self.watch = _Pods(self.state, self.retries, Sampling(self.state), unserved)
        self.verbs = Verbs(self.state, retries=self.retries)
        self.tick()
        for budget in self.budgets.values():
            self.state.budgets.observe(translate.budget(budget))
        self.watch.listed({self.watch.observed(pod) for pod in self.pods.values()})

    def tick(self) -> None:
        """Let the agents renew their Leases."""
        self.renewals += 1
        for name in self.nodes:
            facts = agent_lease(objects.lease(name, self.renewals % 60))
            assert facts is not None
            self.state.observe_lease(facts, self.now_s)
        self.state.tick(self.now_s)

    def report(self, pod: Pod) -> None:
        self.watch.observed(pod)

    def unbound(self) -> list[Pod]:
        return [pod for pod in self.pods.values() if not node_of(pod)]

    def bound(self) -> list[Pod]:
        return [pod for pod in self.pods.values() if node_of(pod)]

    def ending(self) -> list[Pod]:
        return [pod for pod in self.bound() if ENDING in pod["metadata"]]

    def add(self, uid: str, priority: int, labels: Mapping[str, str], **asked: Any) -> Pod:
        pod = calls.pod(uid, objects.container("main", **asked), priority=priority, labels=labels)
        self.pods[uid] = pod
        self.report(pod)
        return pod

    def budget(self, app: str, allowed: int) -> None:
        """Create or change the budget of the pods with this label."""
        metadata = {"namespace": "default", "name": app}
        spec = {"selector": {"matchLabels": {"app": app}}}
        raw = {"metadata": metadata, "spec": spec, "status": {"disruptionsAllowed": allowed}}
        self.budgets[app] = raw
        self.state.budgets.observe(translate.budget(raw))

    def offers(self, pod: Pod, among: Sequence[str]) -> list[str]:
        """Return the nodes on which the extender has room for the pod, and let it rank them."""
        found: list[str]
        found = calls.filtered(self.verbs, pod, among)["NodeNames"] if among else []
        if found:
            self.verbs.prioritize(calls.arguments(pod, found))
        return found

    def bind(self, pod: Pod, node: str, is_accepted: bool = True) -> None:
        """Send the pod's Binding, unless the extender refuses. is_accepted: by the API server."""
        uid = uid_of(pod)
        pending = self.verbs.pending_pod(uid)
        assert pending is not None
        choice = choose(self.state, pending, node, self.verbs.policy(pending), 1)
        if not isinstance(choice, Choice):
            return
        assert choice.placement is not None and choice.annotations is not None
        assumed = Assumed(choice.placement, choice.annotations, 0.0)
        self.state.assume(uid, assumed, f"default/pod-{uid}")
        if not is_accepted:
            self.state.forget(uid)
            return
        pod["metadata"]["annotations"] = dict(choice.annotations)
        pod["spec"]["nodeName"] = node
        self.report(pod)

    def nominate(self, pod: Pod, node: str) -> None:
        """Write the nomination. node: "" removes it."""
        pod["status"]["nominatedNodeName"] = node
        self.report(pod)

    def evict(self, uids: Iterable[str]) -> None:
        """Let the pods begin to terminate."""
        for uid in uids:
            self.pods[uid]["metadata"].setdefault(ENDING, "2026-01-01T00:00:00Z")
            self.report(self.pods[uid])

    def end(self, pod: Pod) -> None:
        del self.pods[uid_of(pod)]
        self.watch.deleted(pod)


class Totals(Cluster):
    """kube-scheduler with one resource, `koordinator.sh/gpu`. Pods request it in one container."""

    def hold(self, uid: str, node: str, minor: int, percent: int, priority: int) -> None:
        """Create a pod that is bound to this GPU."""
        pod = calls.pod(uid, objects.container("main", gpu=percent), priority=priority)
        entry = (f"GPU-{node}-{minor}", minor, objects.resources(core=percent, ratio=percent))
        allocated = objects.allocated(entry)
        pod["metadata"]["annotations"] = {names.ANNOTATION_DEVICE_ALLOCATED: allocated}
        pod["spec"]["nodeName"] = node
        self.pods[uid] = pod
        self.report(pod)

    def try_pod(self, pod: Pod) -> None:
        """Bind the pod, or else preempt for it: one try of kube-scheduler. No effect if bound."""
        if node_of(pod):
            return
        beside = self._beside(pod)
        fitting = [node for node in self.nodes if self._fits(pod, beside[node])]
        first = [nominated(pod)] if nominated(pod) in fitting else []
        for among in (first, fitting):
            if found := self.offers(pod, among):
                self.bind(pod, found[0])
                return
        there = (each for each in self.ending() if node_of(each) == nominated(pod))
        if not any(priority_of(each) < priority_of(pod) for each in there):
            full = [node for node in self.nodes if node not in fitting]
            self._preempt(pod, {node: _victims(pod, beside[node], self._fits) for node in full})

    def _beside(self, pod: Pod) -> Mapping[str, list[Pod]]:
        """Return by node the pods that the totals count: bound ones, and those nominated to it of
        equal or higher priority."""
        beside: dict[str, list[Pod]] = {node: [] for node in ("", *self.nodes)}
        for each in self.pods.values():
            if node := node_of(each):
                beside[node].append(each)
            elif each is not pod and priority_of(each) >= priority_of(pod):
                beside[nominated(each)].append(each)
        return beside

    def _fits(self, pod: Pod, beside: Sequence[Pod]) -> bool:
        return sum(map(_requested, (pod, *beside))) <= 100 * self.gpus

    def _preempt(self, pod: Pod, offered: Mapping[str, Sequence[str]]) -> None:
        answer = calls.preempted(self.verbs, pod, {n: uids for n, uids in offered.items() if uids})
        for node, victims in answer.items():
            for each in self.unbound():
                if nominated(each) == node and priority_of(each) < priority_of(pod):
                    self.nominate(each, "")
            self.nominate(pod, node)
            self.evict(each["UID"] for each in victims["Pods"])


def _victims(
    pod: Pod, beside: Sequence[Pod], fits: Callable[[Pod, Sequence[Pod]], bool]
) -> Sequence[str]:
    """Return the victims that kube-scheduler chooses on a node: the newest pods of the lowest
    priority, as few as the totals need."""
    lower = [each for each in beside if node_of(each) and priority_of(each) < priority_of(pod)]
    left = [each for each in beside if each not in lower]
    victims = []
    if fits(pod, left):
        for each in sorted(lower, key=lambda each: -priority_of(each)):
            if fits(pod, [*left, each]):
                left.append(each)
            else:
                victims.append(uid_of(each))
    return victims


def _requested(pod: Pod) -> int:
    (container,) = pod["spec"]["containers"]
    return int(container["resources"]["requests"].get(names.RESOURCE_GPU, 0))
