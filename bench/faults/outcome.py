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
    NO_GPU = "no GPU"
    """It runs, and no GPU is in it."""
    REFUSED = "refused"
    """The runtime did not make it, or did not start it."""
    UNPROTECTED = "UNPROTECTED"
    """A process in it can open a GPU with no limit in force."""


@dataclass(frozen=True, slots=True)
class Outcome:
    kind: Kind
    said: str = ""
    """Of a refusal, in a word, who refused."""
    text: str = ""
    """Of a refusal, the runtime's words."""


REFUSALS: Final[Mapping[str, tuple[str, str]]] = {
    "late": (r"gpuslice did not decide", "the agent answered in time that it is late"),
    "error": (r"gpuslice failed at", "the agent answered with an error"),
    "agent": (r"gpuslice refuses", "the agent refused, by its rules"),
    "required": (r"required plugin .* not present", "NRI's validator missed the agent"),
    "validator": (r"validator plugin .* failed", "NRI could not ask the agent to validate"),
    "policy": (
        r"failed to handle \w+ request: (ttrpc: closed|context deadline exceeded)",
        "NRI failed the request, as the agent's failure policy asks",
    ),
    "other": ("", "something else"),
}
"""Who refused: how the runtime's words show it, and what it means. The first that is found."""


def refusal(text: str) -> Outcome:
    """From the runtime's words."""
    said = next(name for name, (pattern, _) in REFUSALS.items() if re.search(pattern, text))
    return Outcome(Kind.REFUSED, said, text)


def inside(devices: Sequence[str], seen: Mapping[str, Any], limit_bytes: int) -> Outcome:
    """From inside: the GPU's devices that are there, and what the probe could take.

    Anything that is neither no GPU at all nor exactly the limit counts as unprotected, unless our
    library refuses to let the program begin.
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
    def summary(self) -> str:
        """How many containers came to what, the best first; of refusals, who refused."""
        parts = []
        for kind in Kind:
            said = Counter(each.said for each in self.outcomes if each.kind is kind)
            by = ", ".join(f"{count} {name}" for name, count in said.items() if name)
            if said:
                parts.append(f"{said.total()} {kind.value}" + (f" ({by})" if by else ""))
        return ", ".join(parts)

    @property
    def kinds(self) -> Mapping[Kind, int]:
        return Counter(outcome.kind for outcome in self.outcomes)


def examples(cells: Iterable[Cell]) -> Mapping[str, str]:
    """Of each way to refuse that occurs the runtime's words, once, in the order of REFUSALS."""
    found: dict[str, str] = {}
    for cell in cells:
        for outcome in (*cell.outcomes, *cell.after):
            if outcome.kind is Kind.REFUSED:
                found.setdefault(outcome.said, outcome.text)
    return {name: found[name] for name in REFUSALS if name in found}
