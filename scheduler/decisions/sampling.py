"""Requeues pods that fit in the fleet, but on no node of the sample that kube-scheduler sent.

A node outside the sample that fits is nominated, and GPUs are reserved there. kube-scheduler tries
a nominated node first, even outside its sample. `requeuer` writes the nominations. kube-scheduler
also considers only the sample for preemption. Therefore a pod of positive priority that fits
nowhere is requeued until the samples have covered the whole fleet once. See docs/adr/0050.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from scheduler.core.fit import feasible, max_rows
from scheduler.core.fleet import Bools, Fleet, Rows
from scheduler.core.place import Placement, place
from scheduler.core.request import Policy, Request
from scheduler.core.reservations import Kind
from scheduler.core.score import best, score
from scheduler.decisions.state import State
from scheduler.kubernetes.requests import Pending

_MIN_SAMPLE: Final = 100
"""The least number of nodes that kube-scheduler samples."""
_SLACK: Final = 0.9
"""A factor for the expected size of a sample: kube-scheduler may know fewer nodes than we."""
_MAX_PODS: Final = 1024
_MAX_CONSTRAINTS: Final = 64
"""The most keys of `_accepted`. Each value takes one byte per node."""
_NONE: Final = np.zeros(0, np.bool_)


@dataclass(frozen=True, slots=True)
class Requeue:
    """A pod to requeue. nominated: its new nominated node, "" for none, or None for no change."""

    pending: Pending
    nominated: str | None


@dataclass(slots=True)
class _Missed:
    """A pod that did not fit in its sample. refused: nominated nodes that did not fit at the retry.
    tries: how often no node fitted. requeued_at: the pod's annotation before the last requeue, to
    detect that kube-scheduler has not seen that requeue; None if there was none or it failed."""

    refused: set[str] = field(default_factory=set)
    tries: int = 0
    requeued_at: str | None = None


class Sampling:
    """The pods that did not fit in their sample. requeue: called for each pod to requeue."""

    def __init__(self, state: State, requeue: Callable[[Requeue], None] = lambda due: None) -> None:
        self._state = state
        self._requeue = requeue
        self._pods: dict[str, _Missed] = {}
        self._accepted: dict[int, Bools] = {}
        """Which rows kube-scheduler has sent for pods with the same `Pending.constraints`."""

    def observe(self, pending: Pending, rows: Rows) -> None:
        """Record the nodes that kube-scheduler sent for the pod."""
        fleet = self._state.fleet
        if not _is_sample(fleet, len(rows)):
            return
        accepted = self._accepted.pop(pending.constraints, _NONE)
        if len(accepted) < len(fleet.names):
            accepted = np.pad(accepted, (0, len(fleet.names) - len(accepted)))
        accepted[rows] = True
        self._accepted[pending.constraints] = accepted
        _drop_oldest(self._accepted, _MAX_CONSTRAINTS)

    def accepted(self, pending: Pending, rows: Rows) -> Rows:
        """Return the rows that kube-scheduler is known to accept. rows: those that it sent now."""
        if not _is_sample(self._state.fleet, len(rows)):
            return rows
        return np.flatnonzero(self._accepted[pending.constraints])

    def refuse(self, pending: Pending, request: Request, rows: Rows, policy: Policy) -> None:
        """Handle a pod that fits on none of the nodes `rows` that kube-scheduler sent for it."""
        uid, fleet, reservations = pending.uid, self._state.fleet, self._state.reservations
        if not _is_sample(fleet, len(rows)):
            return
        pod = self._pods[uid] = self._pods.pop(uid, _Missed())
        _drop_oldest(self._pods, _MAX_PODS)
        if pod.requeued_at == pending.requeued_at:
            return  # kube-scheduler has not received the last write yet
        node = reservations.sampled_node(uid)
        if node and node == pending.nominated:
            pod.refused.add(node)
            reservations.end(uid)
            node = ""
        # If `node` is still reserved, kube-scheduler dropped its nomination: nominate it again.
        samples = 1 + len(fleet) // len(rows)
        if not node and len(pod.refused) < samples:
            node = self._nominate(pending, request, rows, policy)
        is_stale = pending.nominated in pod.refused
        pod.tries += not node
        if node or is_stale or (pending.priority > 0 and pod.tries <= samples):
            pod.requeued_at = pending.requeued_at
            self._requeue(Requeue(pending, node if node or is_stale else None))

    def remove(self, uid: str) -> None:
        """Forget a pod that is bound or gone."""
        self._pods.pop(uid, None)

    def failed(self, uid: str) -> None:
        """Undo the nomination of a pod that could not be requeued."""
        if uid in self._pods:
            self._pods[uid].requeued_at = None
        if self._state.reservations.sampled_node(uid):
            self._state.reservations.end(uid)

    def _nominate(self, pending: Pending, request: Request, rows: Rows, policy: Policy) -> str:
        """Reserve the best GPUs outside the sample and return their node; "" if no node fits."""
        state, fleet = self._state, self._state.fleet
        is_other = np.ones(len(fleet.names), np.bool_)
        is_other[rows] = is_other[fleet.rows_of(self._pods[pending.uid].refused)] = False
        accepted = self._accepted[pending.constraints]
        order = [np.flatnonzero(is_other & accepted), np.flatnonzero(is_other & ~accepted)]
        others = np.concatenate(order)[: max_rows(request)]
        fitting = others[feasible(fleet, request, others)]
        if accepted[fitting].any():
            fitting = fitting[accepted[fitting]]
        if not len(fitting):
            return ""
        row = fitting[best(fleet, score(fleet, request, fitting, policy), fitting, 1)[0]]
        placed = place(fleet, request, int(row), policy)
        if not isinstance(placed, Placement):
            return ""
        state.reserve(pending, request, placed, Kind.SAMPLED)
        return placed.node


def sample_size(nodes: int) -> int:
    """Return at how many feasible nodes of a fleet kube-scheduler stops its search."""
    percent = max(5, 50 - nodes // 125)
    return max(_MIN_SAMPLE, nodes * percent // 100)


def _is_sample(fleet: Fleet, sent: int) -> bool:
    """Return whether kube-scheduler may have sent only a sample. sent: how many nodes it sent."""
    nodes = len(fleet)
    return _SLACK * sample_size(nodes) <= sent < nodes


def _drop_oldest(entries: dict[Any, Any], most: int) -> None:
    if len(entries) > most:
        del entries[next(iter(entries))]
