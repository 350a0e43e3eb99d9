"""The model of the counter's protocol is correct in every interleaving of a few processes that may
exit anywhere. It matches the C code, and is incorrect if any of its rules is removed."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Final

import pytest

from tests.shim.region import counter_model
from tests.shim.region.counter_model import FIRST_GENERATION, Protocol, owner, reaper, successor
from tests.shim.region.interleavings import LARGE_LIMIT, Process, Scenario, Wrong, explore
from tests.support import ROOT


def _owner(slot: int, *deltas: int, limit: int = LARGE_LIMIT) -> Process:
    return partial(owner, slot=slot, generation=FIRST_GENERATION, deltas=deltas, limit=limit)


def _reaper(me: int) -> Process:
    return partial(reaper, me=me, slot=0)


def _successor(me: int, *deltas: int) -> Process:
    return partial(successor, me=me, slot=0, deltas=deltas, limit=LARGE_LIMIT)


SCENARIOS = {
    "two race for the last bytes": Scenario(
        (_owner(0, 2, -2, 2, limit=3), _owner(1, 2, -1, limit=3)), (1, 2), limit=3
    ),
    "three race for the last bytes": Scenario(
        (_owner(0, 2, limit=3), _owner(1, 2, limit=3), _owner(2, 1, limit=3)), (1, 2, 3), limit=3
    ),
    "one exits beside another that goes on": Scenario(
        (_owner(0, 2, -1, limit=3), _owner(1, 2, 1, limit=3), _reaper(3)), (1, 2), limit=3
    ),
    "two find the same process exited": Scenario((_owner(0, 2, -1, 3), _reaper(2), _reaper(3))),
    "an exited process's slot is taken": Scenario((_owner(0, 2, -1), _reaper(2), _successor(3, 1))),
    "a slot is taken beside a slow reaper": Scenario(
        (_owner(0, 2), _reaper(2), _reaper(3), _successor(4, 1))
    ),
    "a running process is taken for exited": Scenario(
        (_owner(0, 2, -1), _reaper(2), _reaper(3)), unlocked=(1,)
    ),
    "a running process's slot is taken": Scenario(
        (_owner(0, 2, 1), _reaper(2), _successor(3, 1)), unlocked=(1,)
    ),
}


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_the_protocol_holds_in_every_interleaving_and_after_every_exit(scenario: Scenario) -> None:
    assert explore(Protocol(), scenario) > 500


def _points_in_c(function: str) -> list[str]:
    for name in ("counter.c", "slots.c"):
        source = (ROOT / "shim" / "src" / "region" / name).read_text()
        body = re.search(
            rf"^[a-z][^\n;]*\b{function}\([^;{{]*\)\n{{$(.*?)^}}$", source, re.M | re.S
        )
        if body:
            return re.findall(r"VGPU_AT\((\w+)\)", body[1])
    raise AssertionError(f"no {function} in the C")


IN_C: Final = {"apply": "vgpu_counter_change", "drop": "vgpu_counter_drop"}
"""The model's functions that have another name in C."""


def _points(of: Callable[..., object]) -> list[str]:
    return re.findall(r'At\("(\w+)"\)', inspect.getsource(of))


def test_the_model_has_every_step_of_the_counter_in_the_order_of_the_c() -> None:
    for name, function in inspect.getmembers(Protocol, inspect.isfunction):
        if points := _points(function):
            assert points == _points_in_c(IN_C.get(name, name))
    counter = (ROOT / "shim/src/region/counter.c").read_text()
    assert {*re.findall(r"VGPU_AT\((\w+)\)", counter)} <= {*_points(Protocol)}


_TWO, _REAPERS = "two race for the last bytes", "two find the same process exited"
_TAKEN, _SLOW = "a running process's slot is taken", "a slot is taken beside a slow reaper"
_HELPS = "yield from self.help(counter.high)"
_WAITS = """tag = counter.high
        while (yield Load(("held", tag.slot))).high + 1 == tag.sequence:
            pass"""
_CHECKS_LIMIT = "if limit is not None and counter.low + delta > limit:"
_CHECKS_ONCE = """most, limit = limit, None
            if most is not None and counter.low + delta > most:"""
_LOCKS = 'if not (yield Swap(("lock", slot), 0, me)):'
_DROPS = "self.drop(slot, generation, True)"
_OWNS = "if not (yield from self.owns(slot, generation))"
MUTANTS = {
    "no process helps": (_HELPS, "pass", _TWO, "2 used"),
    "a process waits for the other": (_HELPS, _WAITS, _TWO, "blocked"),
    "help repeats what is done": ("held.high + 1 != tag.sequence", "False", _TWO, "0 used"),
    "help counts a drop": ("if tag.drop:", "if False:", _REAPERS, "[2] charged, [0] held"),
    "the limit is checked once": (_CHECKS_LIMIT, _CHECKS_ONCE, _TWO, "over the limit"),
    "what was dropped is applied": (").high != held.high:", ") is None:", _TAKEN, "1 used"),
    "an operation is published in another's name": (_OWNS + ":", "if False:", _TAKEN, "2 pending"),
    "a publication is overwritten": ("former, operation", "None, operation", _TAKEN, "2 pending"),
    "any holder is dropped": (_OWNS + " or (not", "if (not", _SLOW, "[0] charged, [1] held"),
    "any holder is freed": (_OWNS + " or (yield", "if (yield", _SLOW, "[1] charged"),
    "a slot is freed without its lock": (_LOCKS, "if False:", _SLOW, "[0] charged, [1] held"),
    "a taken slot keeps its charge": (_DROPS, "()", _TAKEN, "[2] charged, [0] held"),
}
"""A rule's source text in Protocol, its replacement, the scenario that fails, and the error."""


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_protocol_that_lacks_a_rule_is_found_out(mutant: str) -> None:
    rule, without, scenario, said = MUTANTS[mutant]
    source = inspect.getsource(Protocol)
    assert source.count(rule) == 1
    changed = vars(counter_model).copy()
    exec(source.replace(rule, without), changed)
    with pytest.raises(Wrong, match=re.escape(said)):
        explore(changed["Protocol"](), SCENARIOS[scenario])
