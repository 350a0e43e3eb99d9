"""How fast kube-scheduler tries pods, and how many it reaches before a nomination is written.

Pure: times are arguments, seconds of one clock. A nomination that comes after kube-scheduler's try
saves nothing, and the Binding fails, because it names the pod's version. So the pods at the front
of the queue are left to kube-scheduler, as many as it tries meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

WRITE_S: Final = 0.05
TURN_S: Final = 0.01
"""Assumed for a nomination's write, and for a pod's turn in kube-scheduler, until measured. A pod
without a nomination takes longer: kube-scheduler searches all nodes."""
MOST_HEAD: Final = 64
REST_S: Final = 0.25
"""Where kube-scheduler has tried none of several pods for so long, it is halted or has others to
try first, and nominations of the foremost pods come in time, too."""
FEW: Final = 8
"""So few pods are left to kube-scheduler's search."""
_NEWEST: Final = 1 / 8
"""Weight of the newest measurement."""
_BREAK_S: Final = 1.0
"""After so long a time kube-scheduler had nothing to try."""


@dataclass(slots=True)
class Pace:
    """write_s: of a nomination. turn_s, search_s: from one try to the next, with a nomination and
    without."""

    write_s: float = WRITE_S
    turn_s: float = TURN_S
    search_s: float = TURN_S
    tried_s: float = float("-inf")

    def note_try(self, now_s: float, is_search: bool) -> None:
        took_s, self.tried_s = now_s - self.tried_s, now_s
        if took_s < _BREAK_S and is_search:
            self.search_s += (took_s - self.search_s) * _NEWEST
        elif took_s < _BREAK_S:
            self.turn_s += (took_s - self.turn_s) * _NEWEST

    def note_write(self, took_s: float) -> None:
        self.write_s += (took_s - self.write_s) * _NEWEST

    def left(self, now_s: float, arrived_s: float, nominated_before: int, waiting: int) -> int:
        """Pods at the front to leave to kube-scheduler. arrived_s: of the first one.
        nominated_before: pods that it tries before that. waiting: pods in all."""
        if now_s - max(self.tried_s, arrived_s) > REST_S and waiting > FEW:
            return 0
        left_s = self.write_s - nominated_before * self.turn_s
        if left_s <= 0:
            return 0
        return min(MOST_HEAD, ceil(left_s / max(self.search_s, 1e-3)) + 1)
