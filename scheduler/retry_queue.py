"""Refused pods, and for which of them room has come since that kube-scheduler has not used.

Pure, over the state. kube-scheduler tries a refused pod again when a pod leaves or a node changes,
else after five minutes. It may see that before this process does, ask at once, and be answered from
what was before; a GPU that is healthy again, or an agent that is back, it does not see at all.

Pods whose requests have one shape share an entry, and the search for room; each pod keeps the nodes
that kube-scheduler has asked about, and room elsewhere is none for it. Entries take turns, and each
looks only at nodes that have changed since its last turn. Fed by `verbs` and `cache`; `retrier`
lets it work, and has the pods retried that are due.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from contract import names
from scheduler.core.fit import look
from scheduler.core.fleet import Rows
from scheduler.core.reasons import Reason
from scheduler.core.request import Request, Shape
from scheduler.core.search import MOST_STEPS
from scheduler.requests import Pending
from scheduler.state import State

PATIENCE_S: Final = 5.0
"""In which kube-scheduler comes by itself, most times: a busy one needs that long for its queue."""
MAX_DUE: Final = 10
"""Pods that `due` names at once."""
_MAX_READY: Final = 5 * MAX_DUE
"""Pods that are to be named: with more, no entry looks for others."""
MAX_PODS: Final = 8192
"""That are remembered; those refused longest ago wait for kube-scheduler's five minutes."""

Candidates = bytes | None
"""A bit for each row of the fleet; None: any node."""


@dataclass(slots=True)
class _Pod:
    """since: only room that came after this change of the fleet is news for it. added: nodes that
    came after this change are candidates, too."""

    asked: Pending
    candidates: Candidates
    since: int
    added: int


@dataclass(slots=True)
class _Entry:
    """seen: the room_version up to which the nodes have been looked at. stale_since_s: when it was
    first seen that there has been room after it."""

    request: Request
    seen: int
    pods: dict[str, _Pod] = field(default_factory=dict)
    stale_since_s: float | None = None


class RetryQueue:
    """See the module. profiles: whose pods `restore` takes. Times are seconds of one monotonic
    clock, the caller's."""

    def __init__(
        self, state: State, profiles: AbstractSet[str] = frozenset({names.SCHEDULER_NAME})
    ) -> None:
        self._state = state
        self._profiles = profiles
        self._entries: dict[Shape, _Entry] = {}
        self._shape_of: dict[str, Shape] = {}
        """By pod; those refused longest ago first."""
        self._turns: deque[Shape] = deque()
        self._ready: dict[str, Rows] = {}
        """By pod that fits, where."""

    def __len__(self) -> int:
        return len(self._shape_of)

    def refuse(self, asked: Pending, request: Request, rows: Rows, unfinished: bool) -> None:
        """None of the nodes has room for the pod; unfinished: as far as was looked."""
        fleet = self._state.fleet
        among = np.zeros(len(fleet.names), np.bool_)
        among[rows] = True
        since = 0 if unfinished else fleet.changes
        candidates = np.packbits(among).tobytes()
        self._enter(request, _Pod(asked, candidates, since, fleet.changes))

    def restore(self, asked: Pending) -> None:
        """kube-scheduler has a pod aside that was refused before this process started."""
        if asked.request is not None and asked.profile in self._profiles:
            self._enter(asked.request, _Pod(asked, None, 0, 0))

    def forget(self, uid: str) -> None:
        """The pod is asked for anew, is bound or is gone."""
        shape = self._shape_of.pop(uid, None)
        if shape is None:
            return
        self._ready.pop(uid, None)
        entry = self._entries[shape]
        del entry.pods[uid]
        if not entry.pods:
            del self._entries[shape]

    def work(self, now_s: float, is_over: Callable[[], bool]) -> bool:
        """Gives entries their turns until the time is over; whether each has had one. To be called
        every second or so, until it is."""
        if not self._turns:
            self._turns.extend(self._entries)
        while self._turns:
            entry = self._entries.get(self._turns.popleft())
            if entry is not None:
                self._turn(entry, now_s)
            if is_over():
                break
        return not self._turns

    def due(self) -> Sequence[Pending]:
        """Those that fit now, important ones first, MAX_DUE at most; each is named once for
        the room that has come until now."""
        found: list[Pending] = []
        for uid in sorted(self._ready, key=lambda uid: -self._pod(uid).asked.priority):
            if len(found) == MAX_DUE:
                break
            pod = self._pod(uid)
            fits, is_finished = self._room(self._entries[self._shape_of[uid]], self._ready[uid])
            if len(fits):
                found.append(pod.asked)
            elif not is_finished:
                continue
            del self._ready[uid]
            pod.since = self._state.fleet.changes
        return found

    def _pod(self, uid: str) -> _Pod:
        return self._entries[self._shape_of[uid]].pods[uid]

    def _enter(self, request: Request, pod: _Pod) -> None:
        uid = pod.asked.uid
        self.forget(uid)
        entry = self._entries.setdefault(request.shape, _Entry(request, pod.since))
        entry.seen = min(entry.seen, pod.since)
        entry.pods[uid] = pod
        self._shape_of[uid] = request.shape
        if len(self._shape_of) > MAX_PODS:
            self.forget(next(iter(self._shape_of)))

    def _turn(self, entry: _Entry, now_s: float) -> None:
        came = self._state.fleet.room_version
        rows = np.flatnonzero(came > entry.seen)
        if not len(rows):
            entry.stale_since_s = None
            return
        if entry.stale_since_s is None:
            entry.stale_since_s = now_s
        if now_s - entry.stale_since_s < PATIENCE_S or len(self._ready) >= _MAX_READY:
            return
        rows = rows[np.argsort(came[rows])]
        fits, is_finished = self._room(entry, rows)
        if self._make_ready(entry, fits) and is_finished:
            entry.seen, entry.stale_since_s = int(came[rows[-1]]), None

    def _room(self, entry: _Entry, rows: Rows) -> tuple[Rows, bool]:
        """Which of them fit, whatever is reserved there for pods that may not come; and whether all
        were looked at."""
        state, request = self._state, entry.request
        with state.budget.steps(MOST_STEPS, at_least=0) as steps:  # one node's search
            possible, reasons = look(state.fleet, request, rows, steps, state.known)
            is_finished = not (reasons == Reason.UNFINISHED).any()
            fits = rows[possible]
            with state.reservations.lifted(rows) as again:
                if len(again):
                    possible, _ = look(state.fleet, request, again, steps, state.known)
                    fits = np.union1d(fits, again[possible])
        return fits, is_finished

    def _make_ready(self, entry: _Entry, fits: Rows) -> bool:
        """The pods that have one of these nodes among their candidates. False: there are more than
        are named at once, and the rest is for later."""
        if not len(fits):
            return True
        fleet = self._state.fleet
        came, added = fleet.room_version[fits], int(fleet.added[fits].max())
        latest: dict[Candidates, int] = {}
        left = MAX_DUE
        for pod in sorted(entry.pods.values(), key=lambda pod: -pod.asked.priority):
            if pod.candidates not in latest:
                among = _among(pod.candidates, fits)
                latest[pod.candidates] = int(came[among].max(initial=0))
            newest = int(came.max()) if added > pod.added else latest[pod.candidates]
            if newest > pod.since and pod.asked.uid not in self._ready:
                if not left:
                    return False
                left -= 1
                self._ready[pod.asked.uid] = fits
        return True


def _among(candidates: Candidates, rows: Rows) -> Rows:
    """Indices into rows."""
    if candidates is None:
        return np.arange(len(rows))
    bits = np.unpackbits(np.frombuffer(candidates, np.uint8))
    known = np.flatnonzero(rows < len(bits))
    among: Rows = known[bits[rows[known]] == 1]
    return among
