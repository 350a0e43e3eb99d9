"""The outcome of one container, and of a cell's containers together.

Pure: decides by the result of the probe inside, or by the runtime's error text.
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
    """Best first. It runs with its grant enforced, or without a GPU; the runtime did not create or
    start it; a process in it can open a GPU with no limit in force."""

    LIMITED = "limited"
    NO_GPU = "no GPU"
    REFUSED = "refused"
    UNPROTECTED = "UNPROTECTED"


@dataclass(frozen=True, slots=True)
class Outcome:
    kind: Kind
    label: str = ""
    """For a refusal: the refusing component, in a word, or the error text of an unknown one."""


REFUSALS: Final[Mapping[str, str]] = {
    "late": r"gpuslice did not decide",
    "error": r"gpuslice failed at",
    "agent": r"gpuslice refuses",
    "required": r"required plugin .* not present",
    "validator": r"validator plugin .* failed",
    "policy": r"failed to handle \w+ request: (ttrpc: closed|context deadline exceeded)",
}
"""The text by which the runtime's error shows the component that refused; the first match applies.
required: NRI's validator. validator: NRI, which could not call the agent's. policy: NRI, by the
agent's failure policy."""


def refusal(text: str) -> Outcome:
    """Read the refusal from the runtime's error text."""
    names = (name for name, pattern in REFUSALS.items() if re.search(pattern, text))
    return Outcome(Kind.REFUSED, next(names, text))


def inside(devices: Sequence[str], seen: Mapping[str, Any], limit_bytes: int) -> Outcome:
    """Report what a program inside sees: the GPU devices present, and what the probe allocated.

    Anything other than no GPU at all or exactly the limit counts as unprotected, unless the library
    refuses to start the program.
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
    """All containers of one fault on one runtime: created during it, and after it until one is
    limited.

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
    def summary(self) -> str:
        """The number of containers by outcome, best first; for refusals, by the refusing
        component."""
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
