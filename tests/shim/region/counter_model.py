"""A model of the counter's protocol and of its processes, which interleavings.py explores.

`Protocol` mirrors shim/src/region/counter.c and the slots' half in slots.c, function by function. A
read or swap of one word is one action, and `At` stands where VGPU_AT does. The model leaves out
shared slots, and how a word of two halves is read and swapped, which ADR 2 discusses.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple


class Tag(NamedTuple):
    slot: int
    sequence: int
    drop: bool


class Word(NamedTuple):
    """A word of sixteen bytes. The high half changes whenever the low half does."""

    low: int
    high: Any


class Load(NamedTuple):
    place: tuple[str, int]


class Swap(NamedTuple):
    """Compare and swap. If `before` is None, store without comparing."""

    place: tuple[str, int]
    before: Any
    after: Any


class At(NamedTuple):
    """A point at which tests can stop the C code. It is not an action."""

    step: str


Steps = Generator[Load | Swap | At, Any, Any]
COUNTER = ("counter", 0)
FIRST_GENERATION = 2


class Protocol:
    """The rules of the counter's protocol."""

    def help(self, tag: Tag) -> Steps:
        held = yield Load(("held", tag.slot))
        if held.high + 1 != tag.sequence:
            return
        if tag.drop:
            to_bytes = 0
        else:
            published = yield Load(("published", tag.slot))
            if published.high != held.high + 1:
                return
            to_bytes = held.low + published.low
        yield At("HELP_READ")
        yield Swap(("held", tag.slot), held, Word(to_bytes, held.high + 1))
        yield At("HELP_DONE")

    def load_counter(self) -> Steps:
        counter = yield Load(COUNTER)
        yield At("COUNTER_READ")
        yield from self.help(counter.high)
        yield At("COUNTER_HELPED")
        return counter

    def owns(self, slot: int, generation: int) -> Steps:
        return (yield Load(("generation", slot))) == generation

    def apply(self, slot: int, generation: int, held: Word, delta: int, limit: int | None) -> Steps:
        operation = Word(delta, held.high + 1)
        former = yield Load(("published", slot))
        if not (yield from self.owns(slot, generation)):
            return "lost"
        yield At("APPLY_OWNED")
        if not (yield Swap(("published", slot), former, operation)):
            return "lost"
        yield At("APPLY_PUBLISHED")
        while True:
            counter = yield from self.load_counter()
            if (yield Load(("held", slot))).high != held.high:
                return "lost"
            if limit is not None and counter.low + delta > limit:
                return "refused"
            tag = Tag(slot, operation.high, False)
            if (yield Swap(COUNTER, counter, Word(max(counter.low + delta, 0), tag))):
                break
        yield At("COUNTER_SWAPPED")
        yield from self.help(tag)
        yield At("APPLY_DONE")
        return "applied"

    def load_held(self, slot: int) -> Steps:
        yield from self.load_counter()
        return (yield Load(("held", slot)))

    def vgpu_counter_charge(self, slot: int, generation: int, size: int, limit: int) -> Steps:
        held = yield from self.load_held(slot)
        return (yield from self.apply(slot, generation, held, size, limit))

    def vgpu_counter_uncharge(self, slot: int, generation: int, size: int) -> Steps:
        held = yield from self.load_held(slot)
        return (yield from self.apply(slot, generation, held, -min(size, held.low), None))

    def drop(self, slot: int, generation: int, even_empty: bool) -> Steps:
        while True:
            counter = yield from self.load_counter()
            held = yield Load(("held", slot))
            if not (yield from self.owns(slot, generation)) or (not held.low and not even_empty):
                return
            yield At("DROP_READ")
            tag = Tag(slot, held.high + 1, True)
            if (yield Swap(COUNTER, counter, Word(max(counter.low - held.low, 0), tag))):
                break
        yield At("DROP_SWAPPED")
        yield from self.help(tag)
        yield At("DROP_DONE")

    def free_locked(self, slot: int, generation: int) -> Steps:
        if not (yield from self.owns(slot, generation)) or (yield Load(("free", slot))):
            return
        yield Swap(("generation", slot), None, generation + 1)
        yield Swap(("free", slot), None, True)
        yield At("FREE_DONE")

    def vgpu_slots_free(self, me: int, slot: int, generation: int) -> Steps:
        if not (yield Swap(("lock", slot), 0, me)):
            return
        yield At("FREE_LOCKED")
        yield from self.free_locked(slot, generation)
        yield Swap(("lock", slot), None, 0)

    def reap(self, me: int, slot: int, generation: int) -> Steps:
        if (yield Load(("lock", slot))):
            return
        yield At("REAP_VERDICT")
        yield from self.drop(slot, generation, False)
        yield from self.vgpu_slots_free(me, slot, generation)

    def take_locked(self, slot: int, generation: int) -> Steps:
        yield from self.drop(slot, generation, True)
        yield Swap(("free", slot), None, False)
        yield At("CLAIM_LIVE")
        yield At("CLAIM_NAMED")
        yield Swap(("generation", slot), None, generation + 2)
        yield At("CLAIM_DONE")
        return generation + 2

    def claim(self, me: int, slot: int) -> Steps:
        """Claim the slot. Return the process's generation, or 0 if the slot is not free."""
        if not (yield Load(("free", slot))) or not (yield Swap(("lock", slot), 0, me)):
            return 0
        yield At("CLAIM_LOCKED")
        generation = yield Load(("generation", slot))
        if not (yield Load(("free", slot))):
            yield Swap(("lock", slot), None, 0)
            return 0
        return (yield from self.take_locked(slot, generation))


class Kept(NamedTuple):
    """The bytes that a finished process holds, and its slot. The slot is -1 if it has none."""

    slot: int
    held_bytes: int


NOTHING = Kept(-1, 0)


def owner(
    rules: Protocol, slot: int, generation: int, deltas: tuple[int, ...], limit: int
) -> Steps:
    """Charge each positive delta and refund each negative one, unless it exceeds the charge."""
    held_bytes = number = 0
    while number < len(deltas):
        delta = deltas[number]
        said = "refused"
        if delta > 0:
            said = yield from rules.vgpu_counter_charge(slot, generation, delta, limit)
        elif held_bytes + delta >= 0:
            said = yield from rules.vgpu_counter_uncharge(slot, generation, -delta)
        if said == "lost":
            return NOTHING
        if said == "applied":
            held_bytes += delta
        number += 1
    return Kept(slot, held_bytes)


def reaper(rules: Protocol, me: int, slot: int) -> Steps:
    generation = yield Load(("generation", slot))
    if not (yield Load(("free", slot))):
        yield from rules.reap(me, slot, generation)
    return NOTHING


def successor(rules: Protocol, me: int, slot: int, deltas: tuple[int, ...], limit: int) -> Steps:
    generation = yield from rules.claim(me, slot)
    if not generation:
        return NOTHING
    return (yield from owner(rules, slot, generation, deltas, limit))
