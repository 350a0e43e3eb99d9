"""What became of one container, and of a cell's containers together.

Pure: decides from what the probe inside said, or from the words in which the runtime refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

_OUT_OF_MEMORY: Final = 2
_NOT_PERMITTED: Final = 800
"""cuInit's code where our library will not let a program begin."""


class Kind(Enum):
    """Best first."""

    LIMITED = "limited"
    """It runs, and is held to its grant."""
    NO_CARD = "no card"
    """It runs, and no card is in it."""
    REFUSED = "refused"
    """The runtime did not make it, or did not start it."""
    UNPROTECTED = "UNPROTECTED"
    """A process in it can open a card with no limit in force."""


@dataclass(frozen=True, slots=True)
class Outcome:
    kind: Kind
    said: str = ""
    """Of a refusal, in a few words, who refused and why."""


_REFUSALS: Final[Sequence[tuple[str, str]]] = (
    (r"gpuslice did not decide", "the agent, late"),
    (r"gpuslice failed at", "the agent, an error"),
    (r"gpuslice refuses", "the agent, by policy"),
    (r"required plugin .* not present", "required plugin missing"),
    (r"validator plugin .* failed", "validator lost"),
)
"""The first that is found names the refusal."""


def refusal(text: str) -> Outcome:
    """From the runtime's words."""
    for pattern, name in _REFUSALS:
        if re.search(pattern, text):
            return Outcome(Kind.REFUSED, name)
    return Outcome(Kind.REFUSED, text)


def inside(devices: Sequence[str], seen: Mapping[str, Any], limit_bytes: int) -> Outcome:
    """From inside: the card's devices that are there, and what the probe could take.

    Anything that is neither no card at all nor exactly the limit counts as unprotected, unless our
    library refuses to let the program begin.
    """
    if not devices and seen["init"] != 0:
        return Outcome(Kind.NO_CARD)
    if seen["init"] == _NOT_PERMITTED:
        return Outcome(Kind.LIMITED, "the library refuses")
    whole = (seen["total"], seen["filled"], seen["more"]) == (limit_bytes, 0, _OUT_OF_MEMORY)
    if whole and seen["free"] < limit_bytes:
        return Outcome(Kind.LIMITED)
    return Outcome(Kind.UNPROTECTED)


@dataclass(frozen=True, slots=True)
class Cell:
    """All containers of one fault on one runtime: made under it, and after it until one is limited.

    `after` ends with a limited one, unless the node did not recover in time.
    """

    outcomes: Sequence[Outcome]
    after: Sequence[Outcome] = ()

    @property
    def unprotected(self) -> int:
        both = (*self.outcomes, *self.after)
        return sum(outcome.kind is Kind.UNPROTECTED for outcome in both)

    @property
    def recovers(self) -> bool:
        return bool(self.after) and self.after[-1].kind is Kind.LIMITED

    @property
    def kinds(self) -> Mapping[Kind, int]:
        """How many containers came to what, the best first."""
        counted = Counter(outcome.kind for outcome in self.outcomes)
        return {kind: counted[kind] for kind in Kind if counted[kind]}


def whys(cells: Iterable[Cell]) -> Mapping[str, int]:
    """The reasons of refusals and how often each was given, in the order of their first mention."""
    return Counter(outcome.said for cell in cells for outcome in cell.outcomes if outcome.said)
