"""Values pass between threads and decisions, so a dataclass is frozen unless it is listed here."""

from __future__ import annotations

import scheduler
from tests.support import dataclasses_of

_CHANGING = {"Queue", "Slot", "_AgentLease", "_Entry", "_Missed", "_Pod", "_Room"}


def test_values_are_frozen() -> None:
    found = dataclasses_of(scheduler)
    assert {each.__name__ for each in found if not each.__dataclass_params__.frozen} == _CHANGING
    assert all("__slots__" in vars(each) for each in found)
