"""Random orders of preemption, nomination, binds, deletions, restarts and deadlines.

A GPU never holds more than it has, and no more is reserved than it has. A nominated pod keeps its
place against all pods of lower or equal priority: once its victims are gone, it fits on its node. A
pod whose GPU was chosen keeps it against them, too, for ten minutes. No pod is evicted against a
PodDisruptionBudget where other pods would do. At the end nothing stays reserved.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection
from typing import Any, Final

import pytest

from scheduler.core.fleet import Fleet
from scheduler.core.place import Placement, place
from scheduler.core.reservations import Kind, Nomination
from scheduler.decisions.state import UNCONFIRMED_S, State
from scheduler.kubernetes import requests, translate
from tests.scheduler import calls
from tests.scheduler.cluster_model import Cluster, Pod, node_of, nominated, priority_of, uid_of

NODES: Final = 3
GPUS: Final = 2
STEPS: Final = 150
PERCENTS: Final = (10, 25, 30, 50, 60, 80, 100)
APPS: Final = ("a", "b", "c")
PAUSES_S: Final = (0.0, 0.1, 1.0, UNCONFIRMED_S, 200.0)
COLUMNS: Final = ("bytes", "core")


class World(Cluster):
    """A cluster in which random steps follow each other."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.kept: dict[str, float] = {}
        """Pods that were nominated, and whose place no pod of higher priority has taken since, each
        with the end of its claim."""
        self.chosen: dict[str, float] = {}
        """The same for pods whose GPU was chosen, until their next try or bind."""
        self.lost: set[str] = set()
        """Nominated pods without GPUs. One that gets some again displaces lower ones."""
        self.created = 0
        super().__init__(NODES, GPUS)

    def start(self) -> None:
        """The API server stores nominations, but no GPUs. Of several pods that are nominated to one
        node some may find other GPUs than before, which do not suffice for the last one."""
        self.chosen = {}
        super().start()
        nodes = Counter(map(nominated, self.unbound()))
        for uid in sorted(self.kept.keys() - self.state.reservations._by_owner.keys()):
            assert nodes[nominated(self.pods[uid])] > 1
            del self.kept[uid]
            self.nominate(self.pods[uid], "")

    # --- steps

    def create(self) -> None:
        self.created += 1
        core, ratio = self.chance.choices(PERCENTS, k=2)
        priority = self.chance.choice((0, 5, 9))
        kinds: tuple[dict[str, int], ...]
        kinds = ({"gpu": 200}, {"ratio": ratio}, {"core": core, "ratio": ratio})
        asked = self.chance.choices(kinds, (1, 1, 8))[0]
        self.add(f"u{self.created}", priority, {"app": self.chance.choice(APPS)}, **asked)

    def schedule(self) -> None:
        """Try a pod as kube-scheduler does: the nominated node first, then all nodes."""
        if not (waiting := self.unbound()):
            return
        pod = self.chance.choice(waiting)
        self.chosen.pop(uid_of(pod), None)
        for among in ([nominated(pod)] if nominated(pod) else [], self.nodes):
            if found := self.offers(pod, among):
                self.displace(priority_of(pod))
                self.chosen[uid_of(pod)] = self.now_s + Kind.RANKED.value
                self.go_on(pod, self.chance.choice(found))
                return
        self.preempt(pod)

    def go_on(self, pod: Pod, node: str) -> None:
        """Bind the pod to one of the nodes that fit, or wait for its volume there. kube-scheduler
        may have nominated the node, which is not always the one ranked first."""
        if (chance := self.chance.random()) < 0.7:
            self.chosen.pop(uid_of(pod))
            self.bind(pod, node, is_accepted=self.chance.random() < 0.9)
            if node_of(pod):
                self.kept.pop(uid_of(pod), None)
        elif chance < 0.85 and uid_of(pod) not in self.kept:
            self.nominate(pod, node)
            self.kept[uid_of(pod)] = self.chosen[uid_of(pod)]

    def preempt(self, pod: Pod) -> None:
        """Offer some pods of lower priority, nominate the node, and delete the victims."""
        there: dict[str, list[str]] = {}
        for each in self.bound():
            if priority_of(each) < priority_of(pod):
                there.setdefault(node_of(each), []).append(uid_of(each))
        offered = {
            node: self.chance.sample(uids, self.chance.randint(1, len(uids)))
            for node, uids in there.items()
        }
        leaving = {uid for node in self.nodes for uid in self.state.leaving(node)}
        spared = {node for node, uids in there.items() if self.has_room(pod, node, uids)}
        violations = {node: len(self.violating(uids)) for node, uids in offered.items()}
        found = calls.preempted(self.verbs, pod, offered, violations)
        assert len(found) <= 1
        for node, victims in found.items():
            uids = [each["UID"] for each in victims["Pods"]]
            assert uids and {*uids} <= {*there[node]}
            if {*uids} != {*offered[node]}:
                violating = self.violating({*uids} - leaving)
                assert len(violating) == victims["NumPDBViolations"]
                assert not violating or node not in spared
            self.displace(priority_of(pod))
            if self.chance.random() < 0.1:
                if nominated(pod) != node:
                    self.kept.pop(uid_of(pod), None)
                return  # kube-scheduler could not write the nomination
            self.nominate(pod, node)
            reservations = self.state.reservations
            if not reservations._nominations.on[node].keys() - reservations._by_owner.keys():
                # Otherwise one that had lost its place may have got it again before this pod.
                self.kept[uid_of(pod)] = float("inf")
            else:
                self.kept.pop(uid_of(pod), None)
            self.evict(uids)

    def has_room(self, pod: Pod, node: str, lower: Collection[str]) -> bool:
        """Return whether the pod fits once the pods leave that no budget protects."""
        state, row = self.state, self.state.fleet.row_of(node)
        gone = {*lower} - self.violating(lower) | {*state.leaving(node)}
        request, rows = requests.request(pod), state.fleet.rows_of((node,))
        assert request is not None
        with (
            state.reservations.lifted(rows, priority_of(pod), (uid_of(pod),)),
            state.fleet.vacated(row, state.amounts(gone)),
        ):
            return isinstance(place(state.fleet, request, row), Placement)

    def violating(self, uids: Collection[str]) -> set[str]:
        """Return the pods that a budget protects. The budgets here allow none or any number."""
        none = {app for app, raw in self.budgets.items() if not raw["status"]["disruptionsAllowed"]}
        return {uid for uid in uids if self.pods[uid]["metadata"]["labels"]["app"] in none}

    def displace(self, priority: int) -> None:
        """A pod of this priority has got a place: those of lower priority may have lost theirs.
        kube-scheduler withdraws some of their nominations. The others get GPUs as soon as they fit,
        for example when that pod goes."""
        for uid in sorted(self.kept.keys() | self.chosen.keys()):
            if priority_of(self.pods[uid]) < priority:
                self.chosen.pop(uid, None)
                if self.kept.pop(uid, None) and self.chance.random() < 0.5:
                    self.nominate(self.pods[uid], "")

    def protect(self) -> None:
        self.budget(self.chance.choice(APPS), self.chance.choice((0, 99)))

    def remove(self) -> None:
        """End a pod, most often one that terminates."""
        ending = self.ending()
        pods = ending if ending and self.chance.random() < 0.8 else [*self.pods.values()]
        if pods:
            self.end(self.chance.choice(pods))

    def end(self, pod: Pod) -> None:
        self.kept.pop(uid_of(pod), None)
        self.chosen.pop(uid_of(pod), None)
        super().end(pod)

    def wait(self) -> None:
        """Let time pass. After ten minutes kube-scheduler no longer waits for a volume, and
        withdraws its nomination."""
        self.now_s += self.chance.choice(PAUSES_S)
        self.tick()
        for uid in [uid for uid, until_s in self.kept.items() if until_s <= self.now_s]:
            del self.kept[uid]
            self.nominate(self.pods[uid], "")
        for uid in [uid for uid, until_s in self.chosen.items() if until_s <= self.now_s]:
            del self.chosen[uid]
            if nominated(self.pods[uid]):
                self.kept.pop(uid, None)
                self.nominate(self.pods[uid], "")

    def step(self) -> None:
        steps = (self.create, self.schedule, self.remove, self.wait, self.protect)
        self.chance.choices(steps, (6, 10, 2, 3, 1))[0]()
        if self.chance.random() < 0.02:
            self.start()

    # --- invariants

    def check(self) -> None:
        fleet, reservations = self.state.fleet, self.state.reservations
        for node in self.nodes:
            row = fleet.row_of(node)
            with fleet.vacated(row, self.state.amounts(self.state.leaving(node))):
                assert _is_within_capacity(fleet, row, "used", "reserved")
            assert _is_within_capacity(fleet, row, "used")
        assert (fleet.reserved_bytes >= 0).all() and (fleet.reserved_core >= 0).all()
        assert all(each.deadline_s > self.now_s for each in reservations._by_owner.values())
        while again := self.lost & reservations._by_owner.keys():
            self.lost -= again
            self.displace(max(reservations._by_owner[uid].priority for uid in again))
        self.lost = reservations._nominations.keys() - reservations._by_owner.keys()
        assert self.kept.keys() | self.chosen.keys() <= reservations._by_owner.keys()
        for uid in self.lost:
            assert not self.fits(reservations._nominations[uid]), f"{uid} has lost its place"

    def fits(self, nomination: Nomination) -> bool:
        """Return whether the pod would fit on its node beside all others, once pods have left."""
        fleet, row = self.state.fleet, self.state.fleet.row_of(nomination.node)
        with fleet.vacated(row, self.state.amounts(self.state.leaving(nomination.node))):
            return isinstance(place(fleet, nomination.request, row), Placement)


def _is_within_capacity(fleet: Fleet, row: int, *kinds: str) -> bool:
    """Return whether no GPU of the node holds more than it has of memory and core. Shares that
    request no core leave 99 percent to the others."""
    uncapped = {"used": "uncapped_shares", "reserved": "reserved_uncapped"}
    size, core = (sum(getattr(fleet, f"{k}_{of}")[row] for k in kinds) for of in ("bytes", "core"))
    shares = sum(getattr(fleet, uncapped[kind])[row] for kind in kinds)
    return bool((size <= fleet.total_bytes[row]).all() and (core + (shares > 0) <= 100).all())


def _amounts(state: State) -> list[list[Any]]:
    rows, columns = state.fleet.rows_of(calls.names(NODES)), ("used_bytes", "used_core")
    return [getattr(state.fleet, name)[rows].tolist() for name in columns]


@pytest.mark.parametrize("seed", [*range(100), 579])
def test_a_nominated_pod_keeps_its_place_and_no_gpu_is_lost(seed: int) -> None:
    world = World(random.Random(seed))
    for _ in range(STEPS):
        world.step()
        world.check()
    fresh = calls.state(NODES, GPUS)
    for pod in world.bound():
        world.report(pod)
        fresh.observe_pod(translate.pod(pod))
    assert _amounts(world.state) == _amounts(fresh)
    for each in world.ending():
        world.end(each)
    for uid in sorted(world.kept):
        # A pod that was chosen for another node than the nominated one has its place there.
        node = world.state.reservations._by_owner[uid].node
        assert calls.filtered(world.verbs, world.pods[uid], [node])["NodeNames"] == [node]
    for pod in [*world.pods.values()]:
        world.end(pod)
    fleet = world.state.fleet
    assert not len(world.state.reservations)
    assert not any(
        getattr(fleet, f"{k}_{of}").any() for k in ("used", "reserved") for of in COLUMNS
    )
    world.state.tick(world.now_s + UNCONFIRMED_S)
    assert not world.state.reservations.nominated_nodes()
