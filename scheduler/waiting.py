"""Who was refused, and for whom room has come since without anybody asking for them again.

Pure, over the state. kube-scheduler tries a refused pod again when a pod leaves or a node changes,
else after five minutes. It may hear of that before we do, ask at once, and be answered from what
was before; and of a card that is well again, or an agent that is back, it does not hear at all.
Fed by `verbs`; `waker` asks who is to be tried, and has it done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scheduler.core.fit import feasible
from scheduler.core.fleet import Rows
from scheduler.core.request import Request
from scheduler.pending import Pending
from scheduler.state import State

PATIENCE_S: Final = 5.0
"""In which kube-scheduler comes by itself, most times: a busy one needs that long for its queue."""
AT_ONCE: Final = 10
"""Pods that are to be tried again, by one look."""
_REQUESTS: Final = 50
"""That are looked for over all nodes, by one look: a few milliseconds."""
_MOST: Final = 8192
"""Pods that are remembered; those refused longest ago wait for kube-scheduler's five minutes."""


@dataclass(slots=True)
class _Waiter:
    """made_room: the state's count of it when the pod was refused, or was looked for in vain.
    stale_since_s: when it was first seen that there has been more since."""

    asked: Pending
    request: Request
    made_room: int
    stale_since_s: float | None = None


class Waiting:
    """See the module. Times are seconds of one monotonic clock, the caller's."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._waiters: dict[str, _Waiter] = {}

    def refuse(self, asked: Pending, request: Request) -> None:
        """No node has room for the pod."""
        self._waiters.pop(asked.uid, None)
        self._waiters[asked.uid] = _Waiter(asked, request, self._state.made_room)
        if len(self._waiters) > _MOST:
            del self._waiters[next(iter(self._waiters))]

    def forget(self, uid: str) -> None:
        """The pod is asked for anew, or is gone."""
        self._waiters.pop(uid, None)

    def overdue(self, now_s: float) -> Sequence[Pending]:
        """Those that fit and wait, important ones first, AT_ONCE at most; each is told once of what
        room has come until now. To be called every second or so."""
        stale = [each for each in self._waiters.values() if self._is_stale(each, now_s)]
        if not stale:
            return ()
        stale.sort(key=lambda each: -each.asked.priority)
        found: list[Pending] = []
        fits: dict[Request, bool] = {}
        rows = self._state.fleet.all_rows()
        for each in stale:
            if each.request not in fits:
                if len(fits) == _REQUESTS:
                    break
                fits[each.request] = self._fits(each.request, rows)
            if fits[each.request]:
                if len(found) == AT_ONCE:
                    break
                found.append(each.asked)
            each.made_room, each.stale_since_s = self._state.made_room, None
        return found

    def _fits(self, request: Request, rows: Rows) -> bool:
        """Whatever others are expected to take: where that ends, nobody is told."""
        state = self._state
        some = feasible(state.fleet, request, rows).any()
        if not some and state.tentative.end_all():
            some = feasible(state.fleet, request, rows).any()
        return bool(some)

    def _is_stale(self, waiter: _Waiter, now_s: float) -> bool:
        if waiter.made_room == self._state.made_room:
            return False
        if waiter.stale_since_s is None:
            waiter.stale_since_s = now_s
        return now_s - waiter.stale_since_s >= PATIENCE_S
