"""`python -m scheduler`, but an agent's Lease counts as fresh for a day: renewals of five thousand
agents would load the API server more than the measured pods. SIGUSR1 turns nominations off, SIGUSR2
on."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Container, Sequence
from typing import Final

from scheduler import service
from scheduler.command_line import application
from scheduler.decisions.backlog import Backlog
from scheduler.decisions.nomination import Nomination
from scheduler.decisions.state import State

_BELIEVED_S: Final = 86400.0


class _Switched(Backlog):
    is_on = True

    def plan(
        self, most: int, is_over: Callable[[], bool], paused: Container[str] = ()
    ) -> Sequence[Nomination]:
        return super().plan(most, is_over, paused) if self.is_on else ()

    def hold_s(self, binding: int) -> float:
        return super().hold_s(binding) if self.is_on else 0.0


def _turn(number: int, frame: object) -> None:
    _Switched.is_on = number == signal.SIGUSR2


if __name__ == "__main__":
    vars(service)["State"] = functools.partial(State, _BELIEVED_S)
    vars(service)["Backlog"] = _Switched
    for each in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(each, _turn)
    application(prog_name="python -m bench.scheduling.fresh_leases")
