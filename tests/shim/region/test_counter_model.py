"""The counter's protocol holds in every interleaving of a few processes that may exit anywhere; and
the model matches the C code, and detects the absence of each of its rules."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Final

import pytest

from tests.shim.region.counter_model import (
    COUNTER,
    FIRST_GENERATION,
    Load,
    Protocol,
    Steps,
    Swap,
    Tag,
    Word,
    owner,
    reaper,
    successor,
)
from tests.shim.region.interleavings import Explored, Scenario, Wrong, explore
from tests.support import ROOT

Process = Callable[[Protocol], Steps]
LARGE_LIMIT = 9


def _owner(slot: int, *deltas: int, limit: int = LARGE_LIMIT) -> Process:
    return partial(owner, slot=slot, generation=FIRST_GENERATION, deltas=deltas, limit=limit)


def _reaper(me: int) -> Process:
    return partial(reaper, me=me, slot=0)


def _successor(me: int, *deltas: int) -> Process:
    return partial(successor, me=me, slot=0, deltas=deltas, limit=LARGE_LIMIT)


SCENARIOS = {
    "two race for the last bytes": Scenario(
        3, (_owner(0, 2, -2, 2, limit=3), _owner(1, 2, -1, limit=3)), (1, 2)
    ),
    "three race for the last bytes": Scenario(
        3, (_owner(0, 2, limit=3), _owner(1, 2, limit=3), _owner(2, 1, limit=3)), (1, 2, 3)
    ),
    "one exits beside another that goes on": Scenario(
        3, (_owner(0, 2, -1, limit=3), _owner(1, 2, 1, limit=3), _reaper(3)), (1, 2)
    ),
    "two find the same process exited": Scenario(
        LARGE_LIMIT, (_owner(0, 2, -1, 3), _reaper(2), _reaper(3)), (1,)
    ),
    "an exited process's slot is taken": Scenario(
        LARGE_LIMIT, (_owner(0, 2, -1), _reaper(2), _successor(3, 1)), (1,)
    ),
    "a slot is taken beside a slow reaper": Scenario(
        LARGE_LIMIT, (_owner(0, 2), _reaper(2), _reaper(3), _successor(4, 1)), (1,)
    ),
    "a running process is taken for exited": Scenario(
        LARGE_LIMIT, (_owner(0, 2, -1), _reaper(2), _reaper(3)), (1,), unlocked=(1,)
    ),
    "a running process's slot is taken": Scenario(
        LARGE_LIMIT, (_owner(0, 2, 1), _reaper(2), _successor(3, 1)), (1,), unlocked=(1,)
    ),
}


@functools.cache
def _as_it_is(scenario: Scenario) -> Explored:
    return explore(Protocol(), scenario)


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_the_protocol_holds_in_every_interleaving_and_after_every_exit(scenario: Scenario) -> None:
    explored = _as_it_is(scenario)
    assert explored.states > 500 and explored.ends > 10


def test_every_point_of_the_model_is_reached() -> None:
    reached = {step for scenario in SCENARIOS.values() for step in _as_it_is(scenario).steps}
    assert reached == set(re.findall(r'At\("(\w+)"\)', inspect.getsource(Protocol)))


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
"""Functions of the model that have another name in C."""
STEPS: Final = {
    name: re.findall(r'At\("(\w+)"\)', inspect.getsource(function))
    for name, function in inspect.getmembers(Protocol, inspect.isfunction)
}


@pytest.mark.parametrize("function", [name for name, steps in STEPS.items() if steps])
def test_the_model_has_the_steps_of_the_c_in_their_order(function: str) -> None:
    assert STEPS[function] == _points_in_c(IN_C.get(function, function))


def test_the_model_has_every_step_of_the_counter() -> None:
    source = (ROOT / "shim" / "src" / "region" / "counter.c").read_text()
    named = set(re.findall(r'At\("(\w+)"\)', inspect.getsource(Protocol)))
    assert set(re.findall(r"VGPU_AT\((\w+)\)", source)) <= named


class NoProcessHelps(Protocol):
    def load_counter(self) -> Steps:
        return (yield Load(COUNTER))


class HelpsWhatIsDone(Protocol):
    def help(self, tag: Tag) -> Steps:
        held = yield Load(("held", tag.slot))
        published = yield Load(("published", tag.slot))
        to_bytes = 0 if tag.drop else held.low + published.low
        yield Swap(("held", tag.slot), held, Word(to_bytes, held.high + 1))


class HelpsAnyPublication(Protocol):
    def help(self, tag: Tag) -> Steps:
        held = yield Load(("held", tag.slot))
        if held.high + 1 != tag.sequence:
            return
        published = yield Load(("published", tag.slot))
        yield Swap(("held", tag.slot), held, Word(held.low + published.low, held.high + 1))


class _Applies(Protocol):
    """apply, with one of its rules left out."""

    owns_first = checks_held = publishes_once = checks_limit_again = True

    def apply(self, slot: int, generation: int, held: Word, delta: int, limit: int | None) -> Steps:
        operation = Word(delta, held.high + 1)
        place = ("published", slot)
        former = yield Load(place)
        if self.owns_first and not (yield from self.owns(slot, generation)):
            return "lost"
        if not (yield Swap(place, former if self.publishes_once else None, operation)):
            return "lost"
        counter = yield from self.load_counter()
        fits = limit is None or counter.low + delta <= limit
        while True:
            counter = yield from self.load_counter()
            if self.checks_held and (yield Load(("held", slot))).high != held.high:
                return "lost"
            if self.checks_limit_again:
                fits = limit is None or counter.low + delta <= limit
            if not fits:
                return "refused"
            tag = Tag(slot, operation.high, False)
            if (yield Swap(COUNTER, counter, Word(max(counter.low + delta, 0), tag))):
                break
        yield from self.help(tag)
        return "applied"


class ChecksTheLimitOnce(_Applies):
    checks_limit_again = False


class AppliesWhatWasDropped(_Applies):
    checks_held = False


class PublishesInAnothersName(_Applies):
    owns_first = publishes_once = False


class DropsAnyHolder(Protocol):
    def drop(self, slot: int, generation: int, even_empty: bool) -> Steps:
        generation = yield Load(("generation", slot))
        yield from super().drop(slot, generation, even_empty)


class RenewsNothing(Protocol):
    def take_locked(self, slot: int, generation: int) -> Steps:
        yield Swap(("free", slot), None, False)
        yield Swap(("generation", slot), None, generation + 2)
        return generation + 2


class WaitsForTheOther(Protocol):
    def load_counter(self) -> Steps:
        while True:
            counter = yield Load(COUNTER)
            tag = counter.high
            if (yield Load(("held", tag.slot))).high + 1 != tag.sequence:
                return counter


class ReapsWithoutTheLock(Protocol):
    def vgpu_slots_free(self, me: int, slot: int, generation: int) -> Steps:
        yield Swap(("generation", slot), None, generation + 1)
        yield Swap(("free", slot), None, True)


MUTANTS: dict[type[Protocol], tuple[str, str]] = {
    NoProcessHelps: ("two race for the last bytes", "2 used"),
    HelpsWhatIsDone: ("two race for the last bytes", "0 used"),
    HelpsAnyPublication: ("two find the same process exited", "0 used"),
    ChecksTheLimitOnce: ("two race for the last bytes", "over the limit"),
    AppliesWhatWasDropped: ("a running process's slot is taken", "used"),
    PublishesInAnothersName: ("a running process's slot is taken", "used"),
    DropsAnyHolder: ("a slot is taken beside a slow reaper", "[0] charged, [1] held"),
    RenewsNothing: ("a running process's slot is taken", "[2] charged, [0] held"),
    WaitsForTheOther: ("two race for the last bytes", "blocked"),
    ReapsWithoutTheLock: ("a slot is taken beside a slow reaper", "[1] charged, [0] held"),
}
"""The first rule that is violated, and where."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_protocol_that_lacks_a_rule_is_found_out(mutant: type[Protocol]) -> None:
    scenario, said = MUTANTS[mutant]
    with pytest.raises(Wrong, match=re.escape(said)):
        explore(mutant(), SCENARIOS[scenario])


def test_a_protocol_with_all_rules_passes() -> None:
    for scenario in ("two race for the last bytes", "a running process's slot is taken"):
        explore(_Applies(), SCENARIOS[scenario])
