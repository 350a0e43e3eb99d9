"""How fast kube-scheduler tries pods, and when it must not run ahead of the nominations.

Pure: times are arguments, seconds of one clock. kube-scheduler decides on a nominated pod in a
millisecond. The API server takes several for the write of a nomination, a Binding and their watch
events, so kube-scheduler would reach pods whose nominations it has not received yet, and search all
nodes for each of them. The answer to its call is held back until it has received more: at most for
as long as such a search takes, so no pod waits longer than without nominations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LEAD: Final = 32
"""Nominated pods that kube-scheduler can try next, so that its call is answered at once."""
MAX_HOLD_S: Final = 0.1
SEARCH_S: Final = 0.02
"""Of a search of all nodes, until it is measured."""
REST_S: Final = 0.25
"""Where kube-scheduler has tried none of several pods for so long, it is halted or has others to
try first, and a nomination of the foremost pod comes in time, too."""
FEW: Final = 8
"""So few pods are left to kube-scheduler's search: a write would gain too little."""
_NEWEST: Final = 1 / 8
"""Weight of the newest measurement."""
_BREAK_S: Final = 1.0
"""After so long a time kube-scheduler had nothing to try."""


@dataclass(slots=True)
class Pace:
    """search_s: how long kube-scheduler takes for a pod without a nomination. answered_s: when it
    last got an answer."""

    search_s: float = SEARCH_S
    answered_s: float = float("-inf")

    def note_try(self, now_s: float, is_search: bool) -> None:
        took_s, self.answered_s = now_s - self.answered_s, now_s
        if is_search and took_s < _BREAK_S:
            self.search_s += (took_s - self.search_s) * _NEWEST

    def hold_s(self) -> float:
        """The longest time for which an answer may be held back."""
        return min(MAX_HOLD_S, self.search_s)

    def left(self, now_s: float, arrived_s: float, ahead: int, waiting: int) -> int:
        """Pods at the front to leave to kube-scheduler. arrived_s: of the first one. ahead: pods
        that are nominated and not tried. waiting: the others."""
        if not ahead and waiting <= FEW:
            return waiting
        return now_s - max(self.answered_s, arrived_s) <= REST_S and not ahead
