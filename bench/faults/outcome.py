"""Determines what a fault did to one container, and to all containers of a cell of the matrix.

A container's outcome follows from a probe in the container, or from the runtime's error text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

_OUT_OF_MEMORY: Final = 2
_NOT_PERMITTED: Final = 800
"""cuInit's code when the library refuses to start a program."""


class Kind(Enum):
    """What became of a container, the best first. LIMITED: it runs, and its grant is enforced.
    NO_GPU: it runs without a GPU. REFUSED: the runtime did not create or start it. UNPROTECTED: a
    process in it can open a GPU with no limit in force."""

    LIMITED = "limited"
    NO_GPU = "no GPU"
    REFUSED = "refused"
    UNPROTECTED = "UNPROTECTED"


@dataclass(frozen=True, slots=True)
class Outcome:
    kind: Kind
    label: str = ""
    """For a refusal: a word for the refusing component, or the whole error text if unknown."""


REFUSALS: Final[Mapping[str, str]] = {
    "late": r"gpuslice did not decide",
    "error": r"gpuslice failed at",
    "agent": r"gpuslice refuses",
    "required": r"required plugin .* not present",
    "validator": r"validator plugin .* failed",
    "policy": r"failed to handle \w+ request: (ttrpc: closed|context deadline exceeded)",
}
"""Patterns of the runtime's error texts, by a word for the refusing component. The first match
counts. required: NRI's default validator. validator: NRI, which could not call the agent as a
validator. policy: NRI, according to the agent's failure policy."""


def refusal(text: str) -> Outcome:
    """Return the refusal that the runtime's error text shows."""
    names = (name for name, pattern in REFUSALS.items() if re.search(pattern, text))
    return Outcome(Kind.REFUSED, next(names, text))


def inside(devices: Sequence[str], seen: Mapping[str, Any], limit_bytes: int) -> Outcome:
    """Return the outcome of a running container. devices: GPU devices in it. seen: the result of
    the probe, which initialises CUDA and allocates memory.

    The container is unprotected unless it has no GPU at all, the library refuses the probe, or the
    probe could allocate exactly the limit.
    """
    if not devices and seen["init"] != 0:
        return Outcome(Kind.NO_GPU)
    if seen["init"] == _NOT_PERMITTED:
        return Outcome(Kind.LIMITED, "the library refuses")
    whole = (seen["total"], seen["filled"], seen["more"]) == (limit_bytes, 0, _OUT_OF_MEMORY)
    if whole and seen["free"] < limit_bytes:
        return Outcome(Kind.LIMITED)
    return Outcome(Kind.UNPROTECTED)


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of the matrix: the containers of one fault on one runtime.

    outcomes: those of containers created during the fault. after: those of containers created after
    the fault, until one was limited. If the last is not LIMITED, the node did not recover in time.
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
    def summary(self) -> str:
        """The number of containers by outcome. Refusals are also counted by refusing component."""
        parts = []
        for kind in Kind:
            label = Counter(each.label for each in self.outcomes if each.kind is kind)
            by = ", ".join(f"{count} {name}" for name, count in label.items() if name)
            if label:
                parts.append(f"{label.total()} {kind.value}" + (f" ({by})" if by else ""))
        return ", ".join(parts)

    @property
    def kinds(self) -> Mapping[Kind, int]:
        return Counter(outcome.kind for outcome in self.outcomes)
