"""The commands of the demo, and their output."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

Holds = Callable[[str], bool]
KUBECTL: Final = "kubectl"
AGAIN_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Act:
    """One command. given: its standard input. typed: lines typed at a terminal."""

    words: tuple[str, ...]
    given: str = ""
    typed: tuple[str, ...] = ()


def kubectl(*words: str, given: str = "", typed: Sequence[str] = ()) -> Act:
    return Act((KUBECTL, *words), given, tuple(typed))


def probed(text: str) -> dict[str, Any]:
    """cuda-probe's line, wherever it is in the output."""
    line = re.search(r'^\{"driver".*\}$', text, re.MULTILINE)
    if line is None:
        raise StageError(f"no line of cuda-probe: {text!r}")
    found: dict[str, Any] = json.loads(line[0])
    return found


@dataclass(frozen=True, slots=True)
class Output:
    """code: the exit status of an act, 0 for success. text: its output."""

    code: int
    text: str


class StageError(RuntimeError):
    """The act could not be performed; the text says why."""
