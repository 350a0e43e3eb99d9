"""What was ranked first and nobody has bound yet, counted in the fleet as taken.

kube-scheduler asks `filter` for the next pod before it sends the last one's `bind`. Were the room
between them not counted, both would be ranked to the card that is best for both, and the second
bind come too late. It is a guess, and rules nobody out: who finds no room is looked at again
without any of them (`end_all`), and only then refused. One ends with its pod's bind, with the
second tick, and when the node changes or others take of it: until then it is beside all that is
there. Of room that comes it knows nothing: there may be a better place by then.

Part of `scheduler.state`, which tells what changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from scheduler.core.fleet import Fleet
from scheduler.core.placement import Placement
from scheduler.core.request import Request

TICKS: Final = 2
"""Seconds or so: longer than from prioritize to bind, unless the pod waits for something else."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Of the card in this slot of the node's row; core_percent None: its share asks for none."""

    slot: int
    memory_bytes: int
    core_percent: int | None


@dataclass(slots=True)
class _Guess:
    request: Request
    placement: Placement
    taken: Sequence[Taken]
    ticks: int = 0


class Tentative:
    """See the module. By pod, its UID."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._guesses: dict[str, _Guess] = {}

    def begin(self, uid: str, request: Request, placement: Placement) -> None:
        """The placement must be what `place` found with all that is there."""
        self.end(uid)
        row = self._fleet.row_of(placement.node)
        taken = []
        for peak in placement.peaks:
            slot = self._fleet.slot_of(row, peak.uuid, peak.minor)
            assert slot is not None, "it was chosen just now"
            taken.append(Taken(slot, peak.memory_bytes, peak.core_percent))
            self._fleet.take(row, slot, peak.memory_bytes, peak.core_percent)
        self._guesses[uid] = _Guess(request, placement, taken)

    def placement(self, uid: str, request: Request, node: str) -> Placement | None:
        """What is counted as taken there, for just this."""
        guess = self._guesses.get(uid)
        if guess is None or guess.placement.node != node or guess.request != request:
            return None
        return guess.placement

    def keep(self, uid: str, placement: Placement) -> Sequence[Taken] | None:
        """Hands over what is taken for exactly this, as it is; the rest is the caller's."""
        guess = self._guesses.get(uid)
        if guess is None or guess.placement is not placement:
            return None
        return self._guesses.pop(uid).taken

    def tick(self) -> None:
        for guess in self._guesses.values():
            guess.ticks += 1
        self._end_where(lambda guess: guess.ticks >= TICKS)

    def end(self, uid: str) -> None:
        guess = self._guesses.pop(uid, None)
        if guess is not None:
            row = self._fleet.row_of(guess.placement.node)
            for each in guess.taken:
                self._fleet.give_back(row, each.slot, each.memory_bytes, each.core_percent)

    def end_on(self, node: str) -> None:
        """Those of that node."""
        self._end_where(lambda guess: guess.placement.node == node)

    def end_all(self) -> bool:
        """Whether there was any."""
        some = bool(self._guesses)
        self._end_where(lambda guess: True)
        return some

    def _end_where(self, ends: Callable[[_Guess], bool]) -> None:
        for uid in [uid for uid, guess in self._guesses.items() if ends(guess)]:
            self.end(uid)
