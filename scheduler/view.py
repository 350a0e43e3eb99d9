"""What the state looks like, for people and for metrics: numbers over all, and node by node.

Pure; read from the state, and nothing kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scheduler.core.fleet import Fleet
from scheduler.core.reasons import TEXTS, Reason
from scheduler.state import State

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Summary:
    """Over all nodes. free_bytes: of usable cards of nodes that may be placed on, as the largest
    slice is."""

    nodes: Mapping[Reason, int]
    usable_cards: int
    unusable_cards: int
    total_bytes: int
    granted_bytes: int
    free_bytes: int
    largest_free_bytes: int
    granted_core_ratio: float


def summary(fleet: Fleet) -> Summary:
    rows = fleet.all_rows()
    there = fleet.total_bytes[rows] > 0
    usable = fleet.usable[rows]
    free = fleet.free_bytes[rows][fleet.bar[rows] == Reason.FITS]
    cards = int(np.count_nonzero(there))
    core = int(fleet.used_core[rows].sum())
    bars = Counter(Reason(int(bar)) for bar in fleet.bar[rows])
    return Summary(
        nodes=bars,
        usable_cards=int(np.count_nonzero(usable)),
        unusable_cards=cards - int(np.count_nonzero(usable)),
        total_bytes=int(fleet.total_bytes[rows].sum()),
        granted_bytes=int(fleet.used_bytes[rows].sum()),
        free_bytes=int(free.sum()),
        largest_free_bytes=int(free.max(initial=0)),
        granted_core_ratio=core / (100 * cards) if cards else 0.0,
    )


def names_of(state: State, node: str | None = None) -> Sequence[str]:
    """All nodes by name, or the one, if it is there."""
    fleet = state.fleet
    if node is not None:
        return [node] if fleet.row_of(node) else []
    return [fleet.names[row] for row in fleet.all_rows().tolist()]


def nodes(state: State, names: Sequence[str]) -> Iterator[Json]:
    """Each node with its cards and who holds them; those that are gone meanwhile are left out."""
    fleet = state.fleet
    for name in names:
        row = fleet.row_of(name)
        if not row:
            continue
        holders: dict[str, list[Json]] = {}
        for holder in state.holders(name):
            for uuid, memory_bytes, core_percent in holder.cards:
                held = {
                    "pod": holder.whose,
                    "uid": holder.uid,
                    "memory_bytes": memory_bytes,
                    "core_percent": core_percent,
                    "assumed": holder.assumed,
                }
                holders.setdefault(uuid, []).append(held)
        reason = Reason(int(fleet.bar[row]))
        yield {
            "name": name,
            "reason": reason.name,
            "text": TEXTS[reason],
            "isolates": bool(fleet.isolates[row]),
            "cards": [
                {
                    "uuid": card.uuid,
                    "minor": card.minor,
                    "usable": bool(fleet.usable[row, slot]),
                    "total_bytes": card.total_bytes,
                    "granted_bytes": int(fleet.used_bytes[row, slot]),
                    "reserved_bytes": int(fleet.reserved_bytes[row, slot]),
                    "free_bytes": int(fleet.free_bytes[row, slot]),
                    "granted_core_percent": int(fleet.used_core[row, slot]),
                    "reserved_core_percent": int(fleet.reserved_core[row, slot]),
                    "free_core_percent": int(fleet.free_core[row, slot]),
                    "shares_without_core": int(fleet.coreless[row, slot]),
                    "holders": holders.get(card.uuid, []),
                }
                for slot, card in enumerate(fleet.cards[row])
            ],
        }


def problems(state: State) -> Sequence[Json]:
    """What a person should look at."""
    return [{"node": each.node, "pod": each.about, "text": each.text} for each in state.problems()]
