"""Every interleaving of a few processes' atomic actions, with an exit possible before each of them.

Searches breadth-first through all reachable states, and reports the first invalid one: use above
the limit, a charge lost or counted twice, or a process that does not end while all others stand
still.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from types import GeneratorType
from typing import Any, NamedTuple

from tests.shim.region.counter_model import (
    COUNTER,
    FIRST_GENERATION,
    NOTHING,
    At,
    Kept,
    Load,
    Protocol,
    Steps,
    Swap,
    Tag,
    Word,
    reaper,
    successor,
)

EXITED: Hashable = "exited"
LONGEST_ALONE = 200
"""More actions than any process needs that runs alone."""


@dataclass(frozen=True)
class Scenario:
    """Processes by number from 1; `owners` have the slots from 0 on, in that order. Those in
    `unlocked` run without their slot's lock, as on overlayfs: others can take them for exited,
    and their next operation finds that their charge was dropped."""

    limit: int
    processes: tuple[Callable[[Protocol], Steps], ...]
    owners: tuple[int, ...]
    unlocked: tuple[int, ...] = ()


class Wrong(Exception):
    """An invalid state."""


Memory = dict[tuple[str, int], Any]


class _Processes:
    """The next action of each process, computed once per state and answer."""

    def __init__(self, rules: Protocol, starts: tuple[Callable[[Protocol], Steps], ...]) -> None:
        self._rules, self._starts = rules, starts
        self._histories: dict[Hashable, tuple[Any, ...]] = {}
        self._next: dict[tuple[Hashable, Any], Hashable] = {}
        self.actions: dict[Hashable, Load | Swap] = {}
        self.ends: dict[Hashable, Kept] = {}
        self.steps: set[str] = set()

    def start(self, number: int) -> Hashable:
        return self._learn(number, ())

    def after(self, key: Any, answer: Any) -> Hashable:
        at = (key, answer)
        if at not in self._next:
            self._next[at] = self._learn(key[0], (*self._histories[key], answer))
        return self._next[at]

    def _learn(self, number: int, history: tuple[Any, ...]) -> Hashable:
        key: Hashable
        steps = self._starts[number](self._rules)
        try:
            action = self._to_action(steps, None)
            for answer in history:
                action = self._to_action(steps, answer)
        except StopIteration as ended:
            key = (number, "ended", ended.value)
            self.ends[key] = ended.value
        else:
            key = (number, *_where(steps))
            self.actions[key] = action
        self._histories.setdefault(key, history)
        return key

    def _to_action(self, steps: Steps, answer: Any) -> Load | Swap:
        said = steps.send(answer)
        while isinstance(said, At):
            self.steps.add(said.step)
            said = steps.send(None)
        return said


_SHARED = frozenset(("self", "rules", "__class__"))


def _where(steps: Any) -> list[Hashable]:
    """A generator's position, and its variables, down to the one that acts."""
    found: list[Hashable] = []
    while isinstance(steps, GeneratorType):
        frame = steps.gi_frame
        assert frame is not None
        local = tuple(v for k, v in sorted(frame.f_locals.items()) if k not in _SHARED)
        found.append((steps.gi_code.co_name, frame.f_lasti, local))
        steps = steps.gi_yieldfrom
    return found


class Explored(NamedTuple):
    states: int
    ends: int
    steps: set[str]


class _Exploration:
    def __init__(self, rules: Protocol, scenario: Scenario) -> None:
        self._scenario, self._rules = scenario, rules
        self._slots = range(len(scenario.owners))
        self._processes = _Processes(rules, scenario.processes)
        places = [COUNTER]
        for slot in self._slots:
            places += [(w, slot) for w in ("held", "published", "generation", "free", "lock")]
        self._places = {place: index for index, place in enumerate(places)}
        self._alone: dict[tuple[Any, Hashable], int] = {}

    def _first(self) -> tuple[Any, ...]:
        memory: Memory = {COUNTER: Word(0, Tag(0, 0, False))}
        for slot, number in enumerate(self._scenario.owners):
            memory["held", slot] = memory["published", slot] = Word(0, 0)
            memory["generation", slot] = FIRST_GENERATION
            memory["free", slot] = False
            memory["lock", slot] = 0 if number in self._scenario.unlocked else number
        return tuple(memory[place] for place in self._places)

    def _act(self, memory: tuple[Any, ...], action: Load | Swap) -> tuple[Any, tuple[Any, ...]]:
        index = self._places[action.place]
        if isinstance(action, Load):
            return memory[index], memory
        if action.before is not None and memory[index] != action.before:
            return False, memory
        return True, (*memory[:index], action.after, *memory[index + 1 :])

    def _kill(self, memory: tuple[Any, ...], number: int) -> tuple[Any, ...]:
        """The kernel drops its locks."""
        changed = list(memory)
        for slot in self._slots:
            index = self._places["lock", slot]
            if changed[index] == number:
                changed[index] = 0
        return tuple(changed)

    def _check(self, memory: tuple[Any, ...]) -> None:
        """The use equals the sum of the slots, and at most one operation not yet helped."""
        used_bytes, tag = memory[0]
        held = [memory[self._places["held", slot]] for slot in self._slots]
        published = memory[self._places["published", tag.slot]]
        pending = 0
        if held[tag.slot].high + 1 == tag.sequence:
            pending = -held[tag.slot].low if tag.drop else published.low
        if used_bytes > self._scenario.limit:
            raise Wrong(f"over the limit: {used_bytes}")
        if used_bytes != sum(word.low for word in held) + pending:
            raise Wrong(f"{used_bytes} used, {held} held, {pending} pending")

    def _goes_on_alone(self, memory: tuple[Any, ...], key: Hashable) -> None:
        """Every running process ends, wherever the others have stopped."""
        path = []
        while key not in self._processes.ends and (memory, key) not in self._alone:
            path.append((memory, key))
            if len(path) > LONGEST_ALONE:
                raise Wrong(f"blocked: {self._processes.actions[key]}")
            answer, memory = self._act(memory, self._processes.actions[key])
            key = self._processes.after(key, answer)
        for at in path:
            self._alone[at] = 1

    def _run(self, memory: tuple[Any, ...], steps: Steps) -> tuple[Any, ...]:
        answer: Any = None
        try:
            while True:
                said = steps.send(answer)
                answer = None
                if not isinstance(said, At):
                    answer, memory = self._act(memory, said)
        except StopIteration:
            return memory

    def _close(self, memory: tuple[Any, ...], keys: tuple[Hashable, ...]) -> None:
        """All have ended: after a search for exited processes, the charge equals what is held.

        A process taken for exited may have counted its last operation in a slot that had been freed
        meanwhile; then it is charged until the next process takes that slot.
        """
        closer = len(keys) + 1
        for slot in self._slots:
            memory = self._run(memory, reaper(self._rules, closer, slot))
            if self._scenario.unlocked:
                memory = self._run(memory, successor(self._rules, closer, slot, (), 0))
        self._check(memory)
        believed = [0 for _ in self._slots]
        for i, key in enumerate(keys):
            kept = self._processes.ends.get(key, NOTHING)
            if kept.slot >= 0 and i + 1 not in self._scenario.unlocked:
                believed[kept.slot] += kept.held_bytes
        held = [memory[self._places["held", slot]].low for slot in self._slots]
        if held != believed:
            raise Wrong(f"{held} charged, {believed} held")

    def run(self) -> Explored:
        count = len(self._scenario.processes)
        first = self._first(), tuple(self._processes.start(i) for i in range(count))
        seen = {first}
        queue = deque(seen)
        ends = 0
        while queue:
            memory, keys = queue.popleft()
            self._check(memory)
            moving = False
            for i, key in enumerate(keys):
                if key == EXITED:
                    continue
                exited = self._kill(memory, i + 1), (*keys[:i], EXITED, *keys[i + 1 :])
                reached = [exited]
                if key not in self._processes.ends:
                    moving = True
                    self._goes_on_alone(memory, key)
                    answer, after = self._act(memory, self._processes.actions[key])
                    new = self._processes.after(key, answer)
                    reached.append((after, (*keys[:i], new, *keys[i + 1 :])))
                for state in reached:
                    if state not in seen:
                        seen.add(state)
                        queue.append(state)
            if not moving:
                ends += 1
                self._close(memory, keys)
        return Explored(len(seen), ends, self._processes.steps)


def explore(rules: Protocol, scenario: Scenario) -> Explored:
    """Raises Wrong at the first invalid state."""
    return _Exploration(rules, scenario).run()
