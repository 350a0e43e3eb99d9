"""Why a node does not do: a number in the arrays, one text for people.

kube-scheduler counts identical texts over its nodes, so a text holds no node's name and no number
that differs from node to node.
"""

from __future__ import annotations

from enum import IntEnum, unique
from typing import Final


@unique
class Reason(IntEnum):
    """Fits in uint8. Smaller ones outrank larger ones where several hold."""

    FITS = 0
    NODE_UNKNOWN = 1
    NO_DEVICE = 2
    DEVICE_STALE = 3
    DEVICE_UNREADABLE = 4
    AGENT_MISSING = 5
    AGENT_SILENT = 6
    AGENT_NOT_READY = 7
    NOT_ISOLATING = 8
    PARTITIONED = 9
    TOO_FEW_CARDS = 10
    NO_CARD_SELECTED = 11
    CARD_TOO_SMALL = 12
    NO_USABLE_CARD = 13
    MEMORY = 14
    CORE = 15
    MEMORY_AND_CORE = 16
    CARDS = 17
    SCOPE = 18
    TOGETHER = 19
    GIVEN_UP = 20
    UNFINISHED = 21
    LEASES_LOST = 22


TEXTS: Final[dict[Reason, str]] = {
    Reason.FITS: "fits",
    Reason.NODE_UNKNOWN: "node not seen yet by the GPU scheduler",
    Reason.NO_DEVICE: "node has no GPU inventory (Device object)",
    Reason.DEVICE_STALE: "GPU inventory is of a former node of this name",
    Reason.DEVICE_UNREADABLE: "GPU inventory (Device object) cannot be read",
    Reason.AGENT_MISSING: "no GPU node agent has reported",
    Reason.AGENT_SILENT: "GPU node agent is silent",
    Reason.AGENT_NOT_READY: "GPU node agent is not ready",
    Reason.NOT_ISOLATING: "node does not isolate GPU shares",
    Reason.PARTITIONED: "several whole GPUs are not placed on a node with the label"
    " gpu-partition-policy: Honor, whose partition table is not supported",
    Reason.TOO_FEW_CARDS: "node has fewer GPU cards than asked",
    Reason.NO_CARD_SELECTED: "no GPU card matches the selector",
    Reason.CARD_TOO_SMALL: "every GPU card is smaller than the memory asked",
    Reason.NO_USABLE_CARD: "too few GPU cards that are healthy and not cordoned",
    Reason.MEMORY: "no GPU card with enough free memory",
    Reason.CORE: "no GPU card with enough free core",
    Reason.MEMORY_AND_CORE: "no GPU card with enough free memory and core at once",
    Reason.CARDS: "too few GPU cards with room",
    Reason.SCOPE: "too few GPU cards with room within the required topology scope",
    Reason.TOGETHER: "GPU cards have no room for all containers together",
    Reason.GIVEN_UP: "too many ways to place the containers on the GPU cards, gave up",
    Reason.UNFINISHED: "search for GPU cards not finished, it goes on in the background",
    Reason.LEASES_LOST: "the GPU scheduler cannot watch the Leases of GPU node agents",
}

UNRESOLVABLE: Final = frozenset(
    {
        Reason.NOT_ISOLATING,
        Reason.PARTITIONED,
        Reason.TOO_FEW_CARDS,
        Reason.NO_CARD_SELECTED,
        Reason.CARD_TOO_SMALL,
    }
)
"""No pod that leaves makes the node fit: kube-scheduler need not try to preempt one there."""
