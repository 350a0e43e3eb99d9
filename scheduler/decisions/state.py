"""Allocations and reservations of every GPU, derived from facts about Kubernetes objects.

The state depends on the latest fact of each object, not on the order of facts. A bound pod holds
what its annotations record, whichever scheduler bound it, until it has finished or is gone. An
assumed pod holds its placement until its binding is observed or `forget` is called. Pods are
identified by UID. Only one thread may use the state. Callers must not change `fleet`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from gpuslice.contract import names, quantity
from scheduler.core.fleet import NO_ROW, Fleet, Gpu, GpuAmount
from scheduler.core.place import Placement, place
from scheduler.core.reasons import Reason
from scheduler.core.request import WHOLE_PERCENT, Policy, Request
from scheduler.core.reservations import Kind, Nomination, Reservations
from scheduler.decisions.agents import Agents
from scheduler.decisions.budgets import Budgets
from scheduler.dialects.table import DEFAULT, Enabled
from scheduler.kubernetes.facts import (
    DeviceFacts,
    HeldGpu,
    Holder,
    LeaseFacts,
    NodeFacts,
    PodFacts,
    Problem,
    Unreadable,
    some_of,
)
from scheduler.kubernetes.requests import Pending

UNCONFIRMED_S: Final = 30.0
"""The longest time between the answer to a preemption and the nomination. It can be long while the
API server is busy."""
_SHOWN: Final = 3
"""The most UUIDs that a problem's text lists."""


class Assumed(NamedTuple):
    """A placement whose binding was not observed yet. annotations: those of the Binding."""

    placement: Placement
    annotations: Mapping[str, str]
    deadline_s: float


class State:
    """See the module. Times are of the caller's monotonic clock. dialects: those that are on."""

    def __init__(
        self,
        expired_after_s: float = names.AGENT_LEASE_EXPIRED_AFTER_S,
        dialects: Enabled = DEFAULT,
    ) -> None:
        self.dialects = dialects
        self.fleet = Fleet()
        self.reservations = Reservations(self.fleet, lambda node: self.amounts(self.leaving(node)))
        self.budgets = Budgets()
        self.agents = Agents(expired_after_s)
        self._nodes: dict[str, NodeFacts] = {}
        self._devices: dict[str, DeviceFacts] = {}
        self._pods: dict[str, PodFacts] = {}
        """The bound and assumed pods."""
        self._on_node: dict[str, dict[str, None]] = {}
        self.allocations: dict[str, Sequence[GpuAmount]] = {}
        """What each bound or assumed pod holds of existing GPUs."""
        self._vanished: dict[str, str] = {}
        self.assumed: dict[str, Assumed] = {}
        """The placements of assumed pods. A repeated bind sends the same Binding."""
        self._terminating: set[str] = set()
        self._now_s = 0.0
        """The time of the last `tick`."""

    # --- nodes, inventory and agents

    def observe_node(self, facts: NodeFacts) -> None:
        """Record a new or changed Node. If its UID is new, it replaces the Node of that name."""
        if self._nodes.get(facts.name) != facts:
            self._nodes[facts.name] = facts
            self._rebuild(facts.name)

    def remove_node(self, name: str) -> None:
        """Remove the Node. What pods bound to it hold is kept, in case the Node is recreated."""
        if self._nodes.pop(name, None) is not None:
            with self.reservations.changing(name):
                self.fleet.remove(name)
            for uid in self._on_node.get(name, ()):
                self.allocations.pop(uid, None)
                self._vanished.pop(uid, None)

    def observe_device(self, facts: DeviceFacts) -> None:
        """Record a new or changed Device."""
        if self._devices.get(facts.name) != facts:
            self._devices[facts.name] = facts
            self._rebuild(facts.name)

    def remove_device(self, name: str) -> None:
        if self._devices.pop(name, None) is not None:
            self._rebuild(name)

    def observe_lease(self, facts: LeaseFacts, now_s: float, age_s: float = 0.0) -> None:
        """Record the agent's Lease that was received at now_s. See Agents.observe."""
        self.agents.observe(facts, now_s, age_s)
        self._judge(facts.name)

    def remove_lease(self, node: str) -> None:
        if self.agents.remove(node):
            self._judge(node)

    def tick(self, now_s: float, leases_lost: bool = False) -> Sequence[str]:
        """Return the nodes whose agents' reason has changed since the last call. Call this about
        once a second. leases_lost: see Agents.tick."""
        self._now_s = now_s
        self.reservations.end_overdue(now_s)
        changed = self.agents.tick(now_s, leases_lost)
        for node in changed:
            self._judge(node)
        return changed

    # --- pods

    def observe_pod(self, facts: PodFacts) -> None:
        """Record a new or changed Pod. An unbound one is ignored, because bound pods stay bound."""
        if facts.finished:
            self.remove_pod(facts.uid)
        elif facts.node:
            self.reservations.nominate(facts.uid, None)
            self._hold(facts)

    def remove_pod(self, uid: str) -> None:
        """Remove a Pod that is gone or has finished."""
        facts = self._pods.pop(uid, None)
        if facts is None:
            return
        row = self.fleet.row_of(facts.node)
        with self.reservations.changing(facts.node):
            for taken in self.allocations.pop(uid, ()):
                self.fleet.take(row, taken, -1)
        self.fleet.note_freed(row)
        self._vanished.pop(uid, None)
        self.assumed.pop(uid, None)
        self._terminating.discard(uid)
        there = self._on_node[facts.node]
        del there[uid]
        if not there:
            del self._on_node[facts.node]

    def assume(self, uid: str, assumed: Assumed, pod_key: str = "") -> None:
        """Make the pod hold the placement before its binding. The pod must not be bound yet.

        Bind the pod next, and call `forget` once it is certain that the binding failed.
        """
        node, peaks = assumed.placement.node, assumed.placement.peaks
        held = tuple(HeldGpu(p.uuid, p.minor, p.memory_bytes, p.core_percent) for p in peaks)
        namespace, _, name = pod_key.partition("/")
        self._hold(PodFacts(uid, namespace, name, node, False, held), assumed)

    def forget(self, uid: str) -> None:
        """End the assumption after a failed binding, unless the pod was observed as bound."""
        if uid in self.assumed:
            self.remove_pod(uid)
            self.reservations.restore(uid)

    def overdue(self, now_s: float) -> Sequence[str]:
        """Return the UIDs of assumed pods whose deadline has passed. Read these pods from the API
        server. They keep their GPUs, because the binding may have succeeded."""
        return [uid for uid, each in self.assumed.items() if each.deadline_s <= now_s]

    def place(
        self, pending: Pending, request: Request, node: str, policy: Policy
    ) -> Placement | Reason:
        """Choose GPUs of the node for the pod: unreserved ones, else also those that are reserved
        for pods of lower priority, or for the pod's nomination."""
        rows = self.fleet.rows_of((node,))
        placement = place(self.fleet, request, int(rows[0]), policy)
        if isinstance(placement, Placement):
            return placement
        with self.reservations.lifted(rows, pending.priority, (pending.uid,)) as lifted:
            return place(self.fleet, request, int(rows[0]), policy) if len(lifted) else placement

    def reserve(self, pending: Pending, request: Request, placement: Placement, kind: Kind) -> None:
        """Reserve the placement for the pod, which kube-scheduler is expected to bind there."""
        uid, priority = pending.uid, pending.priority
        self.reservations.add(uid, request, placement, kind, priority, self._now_s)

    def expect(self, uid: str, nomination: Nomination) -> None:
        """Reserve GPUs of the node that kube-scheduler is expected to nominate. This ends unless a
        watch reports the nomination in time."""
        expected = replace(nomination, deadline_s=self._now_s + UNCONFIRMED_S)
        self.reservations.nominate(uid, expected)

    def node_of(self, uid: str) -> str | None:
        """Return the node of a bound or assumed pod, else None."""
        facts = self._pods.get(uid)
        return None if facts is None else facts.node

    def facts_of(self, uid: str) -> PodFacts | None:
        """Return the facts of a bound or assumed pod, else None."""
        return self._pods.get(uid)

    def amounts(self, uids: Iterable[str]) -> Sequence[GpuAmount]:
        """Return what these pods hold of their nodes' GPUs."""
        return [amount for uid in uids for amount in self.allocations.get(uid, ())]

    def pods_on(self, node: str) -> Iterable[str]:
        """Return the UIDs of the pods that are bound to the node or assumed there."""
        return self._on_node.get(node, {}).keys()

    def leaving(self, node: str) -> Sequence[str]:
        """Return the node's pods that terminate, or that kube-scheduler is about to delete."""
        victims = {*self.reservations.victims_on(node)}
        there = self.pods_on(node)
        return [uid for uid in there if uid in self._terminating or uid in victims]

    def nodes_left(self) -> AbstractSet[str]:
        """Return the nodes that may have leaving pods."""
        terminating = {self._pods[uid].node for uid in self._terminating}
        return terminating.union(self.reservations.nominated_nodes())

    def is_bound(self, uid: str) -> bool:
        """Return whether the pod was observed as bound and has not finished."""
        return uid in self._pods and uid not in self.assumed

    def keep_pods(self, uids: Iterable[str]) -> None:
        """Remove the pods that a new list lacks. Assumed pods stay, because they may be newer than
        the list. uids: those in the list."""
        for uid in self._pods.keys() - self.assumed.keys() - set(uids):
            self.remove_pod(uid)

    # --- reporting

    def gpu_bytes(self) -> Sequence[int]:
        """Return the memory of each usable GPU, also on nodes that accept no pods now."""
        rows = self.fleet.all_rows()
        sizes: list[int] = self.fleet.total_bytes[rows][self.fleet.usable[rows]].tolist()
        return sizes

    def holders(self, node: str) -> Sequence[Holder]:
        """Return what each pod holds of each of the node's GPUs, ordered by the pods' names."""
        gpus, pods = self.fleet.gpus[self.fleet.row_of(node)], self._pods
        holders = [
            Holder(uid, pods[uid].key, gpus[each.slot].uuid, each, uid in self.assumed)
            for uid in self._on_node.get(node, ())
            for each in self.allocations.get(uid, ())
        ]
        return sorted(holders, key=lambda each: (each.pod_key, each.uid))

    def problems(self) -> Sequence[Problem]:
        """Return all current problems, ordered by node."""
        problems = self._overfull()
        for uid, facts in self._pods.items():
            texts = (facts.problem, self._vanished.get(uid, ""))
            problems += [Problem(facts.node, facts.key, text, uid) for text in texts if text]
        for name, device in self._devices.items():
            problems += [Problem(name, "", text) for text in device.problems]
            if node := self._nodes.get(name):
                problems += [Problem(name, "", text) for text in _without_effect(node, device)]
        problems += self.agents.problems()
        return sorted(problems, key=lambda each: (each.node, each.about, each.text))

    def _overfull(self) -> list[Problem]:
        fleet = self.fleet
        most_core = WHOLE_PERCENT - (fleet.uncapped_shares > 0)
        over = (fleet.used_bytes > fleet.total_bytes) | (fleet.used_core > most_core)
        return [
            Problem(
                fleet.names[row],
                "",
                f"{fleet.gpus[row][slot].uuid}: overcommitted:"
                f" {fleet.used_bytes[row, slot]} of {fleet.total_bytes[row, slot]} bytes,"
                f" {fleet.used_core[row, slot]} of {most_core[row, slot]} percent of core",
            )
            for row, slot in np.argwhere(over)
        ]

    # --- internals

    def _hold(self, facts: PodFacts, assumed: Assumed | None = None) -> None:
        uid, had = facts.uid, self._pods.get(facts.uid)
        if had is not None and had.node == facts.node and had.held == facts.held:
            # The pod holds the same as before. It may be bound now, or have begun to terminate.
            self._pods[uid] = facts
            self.assumed.pop(uid, None)
        else:
            self.remove_pod(uid)
            self._pods[uid] = facts
            self._on_node.setdefault(facts.node, {})[uid] = None
            self._take(facts, assumed)
        if assumed is not None:
            self.assumed[uid] = assumed
        if facts.terminating and uid not in self._terminating:
            with self.reservations.changing(facts.node):
                self._terminating.add(uid)

    def _take(self, facts: PodFacts, assumed: Assumed | None) -> None:
        """Add what the pod holds to the fleet, and end its reservation. If the pod does not hold
        the reserved placement, other reservations on the node end where they no longer fit."""
        reserved = self.reservations.release(facts.uid)
        if assumed and reserved is assumed.placement:
            self._enter(facts.uid)
            return
        with self.reservations.changing(facts.node):
            self._enter(facts.uid)
        if reserved is not None:
            self.reservations.renew(reserved.node)

    def _enter(self, uid: str) -> None:
        """Add to the fleet what the pod holds of the node's existing GPUs."""
        held = self._pods[uid].held
        row = self.fleet.row_of(self._pods[uid].node)
        self.allocations.pop(uid, None)
        self._vanished.pop(uid, None)
        if row == NO_ROW:
            return
        if isinstance(held, Unreadable):
            most_of = held.most_of
            taken = [GpuAmount(slot, *most_of(c)) for slot, c in enumerate(self.fleet.gpus[row])]
        else:
            taken, lost = self._resolve(row, held)
            if lost:
                self._vanished[uid] = f"holds a GPU that its node does not have: {', '.join(lost)}"
        for each in taken:
            self.fleet.take(row, each)
        self.allocations[uid] = taken

    def _resolve(self, row: int, held: Iterable[HeldGpu]) -> tuple[list[GpuAmount], list[str]]:
        """Return the amounts held of existing GPUs, and the names of missing GPUs."""
        taken, lost = [], []
        for one in held:
            slot = self.fleet.slot_of(row, one.uuid, one.minor)
            if slot is None:
                lost.append(one.uuid or f"minor {one.minor}")
            else:
                total = self.fleet.gpus[row][slot].total_bytes
                size = one.memory_bytes
                if size is None:
                    size = quantity.share_of(total, one.memory_percent)
                taken.append(GpuAmount(slot, size, one.core_percent))
        return taken, lost

    def _rebuild(self, name: str) -> None:
        """Rebuild the node's row from its inventory and its pods."""
        node, device = self._nodes.get(name), self._devices.get(name)
        if node is None:
            return
        row = self.fleet.add(name)
        barred = node.cordoned | node.excluded
        gpus: Sequence[Gpu] = device.gpus if device else ()
        with self.reservations.changing(name):
            self.fleet.set_gpus(
                row, [replace(c, usable=c.usable and c.uuid not in barred) for c in gpus]
            )
            self._judge(name)
            for uid in self._on_node.get(name, ()):
                self._enter(uid)
        self.fleet.note_freed(row)

    def _judge(self, name: str) -> None:
        node = self._nodes.get(name)
        if node is None:
            return
        row, blocked_by = self.fleet.row_of(name), self._blocked_by(node)
        was_blocked = bool(self.fleet.blocked_by[row])
        with self.reservations.changing(name):
            self.fleet.set_node(row, blocked_by, node.isolates, node.partitioned)
        if was_blocked and not blocked_by:
            self.fleet.note_freed(row)

    def _blocked_by(self, node: NodeFacts) -> Reason:
        device = self._devices.get(node.name)
        if device is None:
            return Reason.NO_DEVICE
        if device.node_uid not in ("", node.uid):
            return Reason.DEVICE_STALE
        if not device.readable:
            return Reason.DEVICE_UNREADABLE
        return self.agents.blocked_by(node.name)


def _without_effect(node: NodeFacts, device: DeviceFacts) -> Iterator[str]:
    """Yield a text for each annotation that withholds GPUs and has an unknown UUID. The GPU that
    the operator meant still gets new shares."""
    for key, withheld in (
        (names.ANNOTATION_CORDONED_GPUS, node.cordoned),
        (names.ANNOTATION_EXCLUDED_GPUS, node.excluded),
    ):
        if unknown := sorted(withheld - {gpu.uuid for gpu in device.gpus}):
            yield (
                f"metadata.annotations[{key}]: invalid value {some_of(unknown, _SHOWN)}: must be"
                " UUIDs of GPUs in the node's Device; it has no effect"
            )
