"""Every interleaving of a few processes' atomic actions. A process may exit before each action.

Searches all reachable states breadth-first, and reports the first invalid one. In an invalid state,
the use exceeds the limit, a charge is lost or counted twice, or a process does not end while all
others stand still.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from types import GeneratorType
from typing import Any

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
LARGE_LIMIT = 9
LONGEST_ALONE = 200
"""A number of actions within which any process ends if no other process runs."""
WORDS = ("held", "published", "generation", "free", "lock")
_SHARED = frozenset(("self", "rules", "__class__"))

Process = Callable[[Protocol], Steps]
Memory = tuple[Any, ...]
"""The counter's word, and then the WORDS of each slot."""


@dataclass(frozen=True)
class Scenario:
    """Processes, numbered from 1. `owners` lists the process of each slot, from slot 0 on.
    `unlocked` lists the processes without their slot's lock, as on overlayfs. Other processes may
    drop the charge of an unlocked process as if it had exited."""

    processes: tuple[Process, ...]
    owners: tuple[int, ...] = (1,)
    unlocked: tuple[int, ...] = ()
    limit: int = LARGE_LIMIT


class Wrong(Exception):
    """An invalid state."""


def _index(word: str, slot: int) -> int:
    return 0 if word == COUNTER[0] else 1 + slot * len(WORDS) + WORDS.index(word)


def _act(memory: Memory, action: Load | Swap) -> tuple[Any, Memory]:
    index = _index(*action.place)
    if isinstance(action, Load):
        return memory[index], memory
    if action.before is not None and memory[index] != action.before:
        return False, memory
    return True, (*memory[:index], action.after, *memory[index + 1 :])


def _run(memory: Memory, steps: Steps) -> Memory:
    """Run one process to its end."""
    answer: Any = None
    try:
        while True:
            said = steps.send(answer)
            answer = None
            if not isinstance(said, At):
                answer, memory = _act(memory, said)
    except StopIteration:
        return memory


def _where(steps: Any) -> list[Hashable]:
    """Return each nested generator's name, position and variables, from the outermost on."""
    found: list[Hashable] = []
    while isinstance(steps, GeneratorType):
        frame = steps.gi_frame
        assert frame is not None
        local = tuple(v for k, v in sorted(frame.f_locals.items()) if k not in _SHARED)
        found.append((steps.gi_code.co_name, frame.f_lasti, local))
        steps = steps.gi_yieldfrom
    return found


class _Processes:
    """The next action of each process. Each is computed once per process's state and answer."""

    def __init__(self, rules: Protocol, starts: tuple[Process, ...]) -> None:
        self._rules, self._starts = rules, starts
        self._histories: dict[Hashable, tuple[Any, ...]] = {}
        self._next: dict[tuple[Hashable, Any], Hashable] = {}
        self.actions: dict[Hashable, Load | Swap] = {}
        self.ends: dict[Hashable, Kept] = {}

    def after(self, key: Any, answer: Any) -> Hashable:
        at = (key, answer)
        if at not in self._next:
            self._next[at] = self.learn(key[0], (*self._histories[key], answer))
        return self._next[at]

    def learn(self, number: int, history: tuple[Any, ...] = ()) -> Hashable:
        key: Hashable
        steps = self._starts[number](self._rules)
        try:
            for answer in (None, *history):
                said = steps.send(answer)
                while isinstance(said, At):
                    said = steps.send(None)
        except StopIteration as ended:
            key = (number, "ended", ended.value)
            self.ends[key] = ended.value
        else:
            key = (number, *_where(steps))
            assert not isinstance(said, At)
            self.actions[key] = said
        self._histories.setdefault(key, history)
        return key


class _Exploration:
    def __init__(self, rules: Protocol, scenario: Scenario) -> None:
        self._scenario, self._rules = scenario, rules
        self._slots = range(len(scenario.owners))
        self._processes = _Processes(rules, scenario.processes)
        self._alone: set[tuple[Memory, Hashable]] = set()

    def _first(self) -> Memory:
        slots: list[Any] = []
        for number in self._scenario.owners:
            lock = 0 if number in self._scenario.unlocked else number
            slots += [Word(0, 0), Word(0, 0), FIRST_GENERATION, False, lock]
        return (Word(0, Tag(0, 0, False)), *slots)

    def _held(self, memory: Memory) -> list[Word]:
        return [memory[_index("held", slot)] for slot in self._slots]

    def _kill(self, memory: Memory, number: int) -> Memory:
        """Release the locks of an exited process, as the kernel does."""
        for slot in self._slots:
            _, memory = _act(memory, Swap(("lock", slot), number, 0))
        return memory

    def _check(self, memory: Memory) -> None:
        """Check that the use equals the sum of the slots and of at most one pending operation."""
        used_bytes, tag = memory[0]
        held = self._held(memory)
        pending = 0
        if held[tag.slot].high + 1 == tag.sequence:
            published = memory[_index("published", tag.slot)]
            pending = -held[tag.slot].low if tag.drop else published.low
        if used_bytes > self._scenario.limit:
            raise Wrong(f"over the limit: {used_bytes}")
        if used_bytes != sum(word.low for word in held) + pending:
            raise Wrong(f"{used_bytes} used, {held} held, {pending} pending")

    def _goes_on_alone(self, memory: Memory, key: Hashable) -> None:
        """Check that the process ends if no other process runs from this state on."""
        path = []
        while key not in self._processes.ends and (memory, key) not in self._alone:
            path.append((memory, key))
            if len(path) > LONGEST_ALONE:
                raise Wrong(f"blocked: {self._processes.actions[key]}")
            answer, memory = _act(memory, self._processes.actions[key])
            key = self._processes.after(key, answer)
        self._alone.update(path)

    def _close(self, memory: Memory, keys: tuple[Hashable, ...]) -> None:
        """Check that, after a search for exited processes, the charge equals what is held.

        All processes have ended. An unlocked process may have counted its last operation in a slot
        that was already freed. This charge stays until the next process takes the slot.
        """
        closer = len(keys) + 1
        for slot in self._slots:
            memory = _run(memory, reaper(self._rules, closer, slot))
            if self._scenario.unlocked:
                memory = _run(memory, successor(self._rules, closer, slot, (), 0))
        self._check(memory)
        believed = [0 for _ in self._slots]
        for number, key in enumerate(keys, 1):
            kept = self._processes.ends.get(key, NOTHING)
            if kept.slot >= 0 and number not in self._scenario.unlocked:
                believed[kept.slot] += kept.held_bytes
        held = [word.low for word in self._held(memory)]
        if held != believed:
            raise Wrong(f"{held} charged, {believed} held")

    def run(self) -> int:
        starts = tuple(self._processes.learn(i) for i in range(len(self._scenario.processes)))
        seen = {(self._first(), starts)}
        queue = deque(seen)
        while queue:
            memory, keys = queue.popleft()
            self._check(memory)
            moving = False
            for i, key in enumerate(keys):
                if key == EXITED:
                    continue
                reached = [(self._kill(memory, i + 1), EXITED)]
                if key not in self._processes.ends:
                    moving = True
                    self._goes_on_alone(memory, key)
                    answer, after = _act(memory, self._processes.actions[key])
                    reached.append((after, self._processes.after(key, answer)))
                for changed, new in reached:
                    state = changed, (*keys[:i], new, *keys[i + 1 :])
                    if state not in seen:
                        seen.add(state)
                        queue.append(state)
            if not moving:
                self._close(memory, keys)
        return len(seen)


def explore(rules: Protocol, scenario: Scenario) -> int:
    """Search all reachable states, and return their number. Raises Wrong at an invalid state."""
    return _Exploration(rules, scenario).run()
