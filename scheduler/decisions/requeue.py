"""Finds refused pods that fit since capacity was freed, and that kube-scheduler has not retried.

Pods whose requests have the same shape share an `_Entry`, for which nodes are searched once. Each
pod keeps its candidates, the nodes that kube-scheduler sent for it. Capacity of other nodes does
not count for the pod. Entries are searched in turn, each only on nodes that changed since its last
search. `verbs` and `cache` add and remove pods. `requeuer` calls `work`, and requeues the pods that
`due` returns. See docs/adr/0025.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from gpuslice.contract import names
from scheduler.core.fit import feasible, max_rows
from scheduler.core.fleet import Rows
from scheduler.core.request import Request, Shape
from scheduler.decisions.state import State
from scheduler.kubernetes.requests import Pending

TIMEOUT_S: Final = 5.0
"""The wait before a pod that fits is requeued. Usually kube-scheduler, even if its queue is long,
retries the pod itself within this time."""
MAX_DUE: Final = 10
"""Maximum number of pods that `due` returns at once."""
_MAX_READY: Final = 5 * MAX_DUE
"""While this many pods wait for `due`, no entry is searched."""
MAX_PODS: Final = 8192
"""The most pods kept. Those refused longest ago are dropped: kube-scheduler retries them later."""

Candidates = bytes | None
"""The candidate nodes: a bit for each row of the fleet; None for all nodes."""


@dataclass(slots=True)
class _Pod:
    """A refused pod. since, added: values of `Fleet.changes`. Only capacity freed after `since`
    counts. Nodes added after `added` are candidates too."""

    pending: Pending
    candidates: Candidates
    since: int
    added: int


@dataclass(slots=True)
class _Entry:
    """Pods of one shape. seen: nodes with a freed_version up to this were searched. stale_since_s:
    when a node with a later freed_version was first seen."""

    request: Request
    seen: int
    pods: dict[str, _Pod] = field(default_factory=dict)
    stale_since_s: float | None = None


class Unschedulable:
    """The refused pods. profiles: the schedulerNames of pods that `restore` accepts. Times are
    seconds of the caller's monotonic clock."""

    def __init__(
        self, state: State, profiles: AbstractSet[str] = frozenset({names.SCHEDULER_NAME})
    ) -> None:
        self._state = state
        self._profiles = profiles
        self._entries: dict[Shape, _Entry] = {}
        self._shape_of: dict[str, Shape] = {}
        """The shape of each pod's request. The pod refused longest ago is first."""
        self._turns: deque[Shape] = deque()
        self._ready: dict[str, Rows] = {}
        """The rows of nodes that fit, for each pod that waits for `due`."""

    def __len__(self) -> int:
        return len(self._shape_of)

    def refuse(self, pending: Pending, request: Request, rows: Rows) -> None:
        """Add a pod that was refused. rows: the nodes that kube-scheduler accepts for it."""
        fleet = self._state.fleet
        among = np.zeros(len(fleet.names), np.bool_)
        among[rows] = True
        candidates = np.packbits(among).tobytes()
        self._enter(request, _Pod(pending, candidates, fleet.changes, fleet.changes))

    def restore(self, pending: Pending) -> None:
        """Add a pod that was refused before this process started."""
        if pending.request is not None and self.serves(pending):
            self._enter(pending.request, _Pod(pending, None, 0, 0))

    def serves(self, pending: Pending) -> bool:
        """Return whether the pod has one of the profiles."""
        return pending.profile in self._profiles

    def remove(self, uid: str) -> None:
        """Remove a pod that is being scheduled again, is bound or is gone."""
        shape = self._shape_of.pop(uid, None)
        if shape is None:
            return
        self._ready.pop(uid, None)
        entry = self._entries[shape]
        del entry.pods[uid]
        if not entry.pods:
            del self._entries[shape]

    def work(self, now_s: float, is_over: Callable[[], bool]) -> bool:
        """Search for one entry after the other until `is_over`. Return whether the round over all
        entries is complete. Call it about once a second."""
        if not self._turns:
            self._turns.extend(self._entries)
        while self._turns:
            entry = self._entries.get(self._turns.popleft())
            if entry is not None:
                self._turn(entry, now_s)
            if is_over():
                break
        return not self._turns

    def due(self, is_over: Callable[[], bool] = lambda: False) -> Sequence[Pending]:
        """Return at most MAX_DUE pods that fit now, by priority, and stop at `is_over`. A pod is
        returned again only after more capacity is freed."""
        due: list[Pending] = []
        for uid in sorted(self._ready, key=lambda uid: -self._pod(uid).pending.priority):
            if len(due) == MAX_DUE or is_over():
                break
            pod = self._pod(uid)
            request = self._entries[self._shape_of[uid]].request
            if len(self._fitting(request, self._ready[uid], {uid: pod})):
                due.append(pod.pending)
            del self._ready[uid]
            pod.since = self._state.fleet.changes
        return due

    def again(self, uid: str) -> None:
        """Search for the pod again, because it could not be requeued."""
        if uid in self._shape_of:
            self._pod(uid).since = self._entries[self._shape_of[uid]].seen = 0

    def _pod(self, uid: str) -> _Pod:
        return self._entries[self._shape_of[uid]].pods[uid]

    def _enter(self, request: Request, pod: _Pod) -> None:
        uid = pod.pending.uid
        self.remove(uid)
        entry = self._entries.setdefault(request.shape, _Entry(request, pod.since))
        entry.seen = min(entry.seen, pod.since)
        entry.pods[uid] = pod
        self._shape_of[uid] = request.shape
        if len(self._shape_of) > MAX_PODS:
            self.remove(next(iter(self._shape_of)))

    def _turn(self, entry: _Entry, now_s: float) -> None:
        came = self._state.fleet.freed_version
        rows = np.flatnonzero(came > entry.seen)
        if not len(rows):
            entry.stale_since_s = None
            return
        if entry.stale_since_s is None:
            entry.stale_since_s = now_s
        if now_s - entry.stale_since_s < TIMEOUT_S or len(self._ready) >= _MAX_READY:
            return
        rows = rows[np.argsort(came[rows])][: max_rows(entry.request)]
        if self._make_ready(entry, self._fitting(entry.request, rows, entry.pods)):
            entry.seen, entry.stale_since_s = int(came[rows[-1]]), None

    def _fitting(self, request: Request, rows: Rows, pods: Mapping[str, _Pod]) -> Rows:
        """Return rows that fit now, or without the reservations that one of the pods overrides."""
        fleet = self._state.fleet
        fits = rows[feasible(fleet, request, rows)]
        priority = max(pod.pending.priority for pod in pods.values())
        with self._state.reservations.lifted(rows, priority, pods) as again:
            return np.union1d(fits, again[feasible(fleet, request, again)]) if len(again) else fits

    def _make_ready(self, entry: _Entry, fits: Rows) -> bool:
        """Mark at most MAX_DUE pods with one of these candidates as ready. Return False if more
        qualify."""
        if not len(fits):
            return True
        fleet = self._state.fleet
        came, added = fleet.freed_version[fits], int(fleet.added[fits].max())
        latest: dict[Candidates, int] = {}
        left = MAX_DUE
        for pod in sorted(entry.pods.values(), key=lambda pod: -pod.pending.priority):
            if pod.candidates not in latest:
                among = _among(pod.candidates, fits)
                latest[pod.candidates] = int(came[among].max(initial=0))
            newest = int(came.max()) if added > pod.added else latest[pod.candidates]
            if newest > pod.since and pod.pending.uid not in self._ready:
                if not left:
                    return False
                left -= 1
                self._ready[pod.pending.uid] = fits
        return True


def _among(candidates: Candidates, rows: Rows) -> Rows:
    """Return the indices in `rows` of rows that are candidates."""
    if candidates is None:
        return np.arange(len(rows))
    bits = np.unpackbits(np.frombuffer(candidates, np.uint8))
    known = np.flatnonzero(rows < len(bits))
    among: Rows = known[bits[rows[known]] == 1]
    return among
