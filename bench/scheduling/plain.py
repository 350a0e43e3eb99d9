"""The core as a plain loop: what it would be to ask each card in turn, as objects.

The rival of the columns: the same answer for a pod of one container and one card, by binpack, with
nothing summed that could be kept. No column is known here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler.core.fleet import Fleet
from scheduler.core.reasons import Reason
from scheduler.core.request import Ask, Request


@dataclass(slots=True)
class PlainCard:
    minor: int
    total_bytes: int
    used_bytes: int
    used_core: int
    coreless: int
    usable: bool
    labels: Mapping[str, str]

    @property
    def fullness(self) -> float:
        return (self.used_bytes / self.total_bytes + self.used_core / 100) / 2

    def has_room(self, size_bytes: int, core_percent: int | None) -> bool:
        if self.used_bytes + size_bytes > self.total_bytes:
            return False
        if core_percent is None:
            return self.used_core < 100
        return self.used_core + core_percent <= (99 if self.coreless else 100)


@dataclass(slots=True)
class PlainNode:
    name: str
    tie: int
    cards: Sequence[PlainCard]
    barred: bool
    isolates: bool


def nodes_of(fleet: Fleet) -> Sequence[PlainNode]:
    """The same fleet, as objects."""
    return [
        PlainNode(
            fleet.names[row],
            int(fleet.tie[row]),
            [
                PlainCard(
                    card.minor,
                    card.total_bytes,
                    int(fleet.used_bytes[row, slot]),
                    int(fleet.used_core[row, slot]),
                    int(fleet.coreless[row, slot]),
                    bool(fleet.usable[row, slot]),
                    card.labels,
                )
                for slot, card in enumerate(fleet.cards[row])
            ],
            fleet.bar[row] != Reason.FITS,
            bool(fleet.isolates[row]),
        )
        for row in fleet.all_rows()
    ]


def choose(nodes: Sequence[PlainNode], request: Request) -> tuple[str, int] | None:
    """The best node's name and its card's minor; None where nothing fits."""
    (ask,) = request.asks
    found = None
    for node in nodes:
        if node.barred or (request.isolation and not node.isolates):
            continue
        card = _best_card(node, request, ask)
        if card is None:
            continue
        rank = (-_score(node, card, ask), node.tie, node.name)
        if found is None or rank < found[0]:
            found = rank, card.minor
    return None if found is None else (found[0][2], found[1])


def _best_card(node: PlainNode, request: Request, ask: Ask) -> PlainCard | None:
    """In use before empty, then the fullest, then the lowest minor."""
    best, most = None, (False, 0.0)
    for card in node.cards:
        if not card.usable or not all(line.matches(card.labels) for line in request.selector):
            continue
        if not card.has_room(ask.bytes_of(card.total_bytes), ask.core_percent):
            continue
        rank = card.used_bytes > 0 or card.used_core > 0 or card.coreless > 0, card.fullness
        if best is None or rank > most:
            best, most = card, rank
    return best


def _score(node: PlainNode, card: PlainCard, ask: Ask) -> float:
    asked = ask.bytes_of(card.total_bytes) / card.total_bytes + (ask.core_percent or 0) / 100
    is_open = card.used_bytes > 0 or card.used_core > 0 or card.coreless > 0
    whole_node = sum(each.fullness for each in node.cards) / len(node.cards)
    # The arithmetic of the columns is another; what differs by less than this is equal.
    return round(0.5 * is_open + 0.4 * (card.fullness + asked / 2) + 0.1 * whole_node, 9)
