"""A fleet that is in use, as the scheduler's state has it: equal cards, pods of a few sizes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from scheduler.core.fleet import Card
from scheduler.facts import DeviceFacts, HeldCard, LeaseFacts, NodeFacts, PodFacts
from scheduler.state import State
from simgpu.lab.fleet_objects import Shape, card_uuid

CARD_BYTES: Final = 80 << 30
CARDS: Final = 8
_PERCENTS: Final = (5, 10, 15)
"""What each pod holds of its card. Five to a card leave a quarter of it at least."""
_SEED: Final = 6


@dataclass(frozen=True, slots=True)
class Size:
    nodes: int
    pods: int

    @property
    def shape(self) -> Shape:
        return Shape(self.nodes, CARDS, CARD_BYTES)


@dataclass(frozen=True, slots=True)
class Mix:
    """The pods of a run. percents: what each container of a pod asks of a GPU. misfits: every tenth
    pod asks for a whole GPU, and there is none."""

    about: str
    percents: Sequence[int] = (20,)
    misfits: bool = False

    def asked(self, number: int) -> Sequence[int]:
        return self.percents if self.fits(number) else (100,)

    def fits(self, number: int) -> bool:
        return not self.misfits or number % 10 != 9


ONE: Final = Mix("pods of one container")
TENTH: Final = Mix("10 % of the pods fit nowhere", misfits=True)
WIDE: Final = Mix("pods of 12 containers", (5,) * 12)

SMALL: Final = Size(100, 4_000)
MIDDLE: Final = Size(1_000, 40_000)
LARGE: Final = Size(5_000, 40_000)


def held(size: Size) -> Iterator[tuple[int, int, int]]:
    """Of each pod that is there: its node's number, its card's minor, percent of core and memory.
    Evenly over all cards."""
    chance = random.Random(_SEED)
    for number in range(size.pods):
        node, minor = divmod(number % (size.nodes * CARDS), CARDS)
        yield node, minor, chance.choice(_PERCENTS)


def filled(size: Size) -> State:
    state = State()
    names = size.shape.node_names()
    for number, name in enumerate(names):
        cards = tuple(
            Card(card_uuid(number, minor), minor, CARD_BYTES, numa=minor // 4, root=f"pci{minor}")
            for minor in range(CARDS)
        )
        state.see_device(DeviceFacts(name, f"uid-{name}", cards))
        state.see_node(NodeFacts(name, f"uid-{name}", isolates=True))
        state.see_lease(LeaseFacts(name, "now"), 0.0)
    for number, (node, minor, percent) in enumerate(held(size)):
        uuid, taken = card_uuid(node, minor), CARD_BYTES * percent // 100
        holds = (HeldCard(uuid, minor, taken, percent, percent),)
        facts = PodFacts(f"there-{number}", "there", f"p{number}", names[node], False, holds)
        state.see_pod(facts)
    return state
