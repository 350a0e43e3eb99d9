"""How fast kube-scheduler tries pods, and when it must not run ahead of the nominations.

Pure: times are arguments, seconds of one clock. kube-scheduler decides on a nominated pod in a
millisecond. The API server takes several for the write of a nomination, a Binding and their watch
events, so kube-scheduler would reach pods whose nominations it has not received yet, and search all
nodes for each of them. The answer for a pod whose nomination saved a search is held back until
kube-scheduler has received more: at most for the rest of the time that the search would have taken.
No other answer is held back, so no pod's turn takes longer than without nominations.

It also overtakes the Bindings: it begins a binding cycle for each pod, however many are in
progress. Where the API server is slow, their calls would time out, and each such pod is searched
for again. So the answer is held back, too, while many are in progress.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LEAD: Final = 32
"""Nominated pods that kube-scheduler can try next, so that its call is answered at once."""
MAX_BINDING: Final = 64
"""Pods in kube-scheduler's binding cycle, so that its call is answered at once."""
MAX_HOLD_S: Final = 0.1
SEARCH_S: Final = 0.02
"""Seconds of a search of all nodes, until one is measured."""
REST_S: Final = 0.25
"""If kube-scheduler has tried none of several pods for so long, it is halted or has others to
try first, and a nomination of the foremost pod comes in time, too."""
FEW: Final = 8
"""So few pods are left to kube-scheduler's search: a write would gain too little."""
_NEWEST: Final = 1 / 8
"""Weight of the newest measurement."""
_BREAK_S: Final = 1.0
"""After so long a time kube-scheduler was halted, or had nothing to try."""


@dataclass(slots=True)
class Pace:
    """search_s: how long kube-scheduler takes for a pod without a nomination. answered_s: when it
    last got an answer. hold_s: for how long the next one may be held back at most."""

    search_s: float = SEARCH_S
    answered_s: float = float("-inf")
    hold_s: float = 0.0

    def note_try(
        self, now_s: float, arrived_s: float, is_search: bool, is_saved: bool = False
    ) -> None:
        """arrived_s: of the pod, inf if it was tried before. Before a pod that came later than the
        last answer, kube-scheduler may have had nothing to try. is_saved: the nomination saved the
        search."""
        was_busy = arrived_s <= self.answered_s
        took_s, self.answered_s = now_s - self.answered_s, now_s
        if is_search and was_busy and took_s < _BREAK_S:
            self.search_s += (took_s - self.search_s) * _NEWEST
        self.hold_s = max(0.0, min(MAX_HOLD_S, self.search_s) - took_s) if is_saved else 0.0

    def leaves_all(self, ahead: int, waiting: int) -> bool:
        """Whether kube-scheduler searches for all pods that wait. ahead: pods that are nominated
        and not tried."""
        return not ahead and waiting <= FEW

    def leaves_first(self, now_s: float, arrived_s: float, ahead: int) -> bool:
        """Whether kube-scheduler may already search for the first pod, which arrived at
        arrived_s."""
        return not ahead and now_s - max(self.answered_s, arrived_s) <= REST_S
