"""What the demo acts on: commands, and what each says. A cluster of its own, or a record of one.

The story (demo.py) knows this alone: so what was seen once can be told again, claim for claim,
without a cluster, and README's picture of it is a run's (`Recorded`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

Holds = Callable[[str], bool]
KUBECTL: Final = "kubectl"


@dataclass(frozen=True, slots=True)
class Act:
    """One command. given: on its standard input. typed: at a terminal, line by line."""

    words: tuple[str, ...]
    given: str = ""
    typed: tuple[str, ...] = ()


def kubectl(*words: str, given: str = "", typed: Sequence[str] = ()) -> Act:
    return Act((KUBECTL, *words), given, tuple(typed))


UP: Final = Act(("up",))
DOWN: Final = Act(("down",))


@dataclass(frozen=True, slots=True)
class Said:
    """How an act ended, what it said, and how long that took. code: 0 where it was well."""

    code: int
    text: str
    seconds: float


class StageError(RuntimeError):
    """The act could not be done at all; the text says why."""


class Stage(Protocol):
    """Raises StageError in each."""

    def do(self, act: Act, holds: Holds | None = None) -> Said:
        """holds: the act is repeated until this is true of what it says, or for so long that it
        will not be."""

    def up(self, say: Callable[[str], object]) -> Said:
        """The cluster; `say` gets a line for each step of its start, when it is done."""

    def down(self) -> Said:
        """Its end; what it says is what is left, one thing a line: nothing, if all is well."""

    def now_s(self) -> float:
        """The clock that its acts take time of."""


# --- a record ---------------------------------------------------------------------------------


class Recording:
    """A stage that passes on to another, and keeps what was said."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._kept: list[dict[str, Any]] = []

    def do(self, act: Act, holds: Holds | None = None) -> Said:
        return self._keep(act, self._stage.do(act, holds))

    def up(self, say: Callable[[str], object]) -> Said:
        return self._keep(UP, self._stage.up(say))

    def down(self) -> Said:
        return self._keep(DOWN, self._stage.down())

    def now_s(self) -> float:
        return self._stage.now_s()

    def _keep(self, act: Act, said: Said) -> Said:
        self._kept.append(
            {
                **_key(act),
                "code": said.code,
                "said": said.text.split("\n"),
                "seconds": round(said.seconds, 2),
            }
        )
        return said

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self._kept, indent=1, ensure_ascii=False) + "\n")


class Recorded:
    """What was said in a run, told again. An act that was not the run's next one raises StageError:
    the record is stale."""

    def __init__(self, path: Path) -> None:
        self._left: list[dict[str, Any]] = json.loads(path.read_text())
        self._now_s = 0.0

    def do(self, act: Act, holds: Holds | None = None) -> Said:
        kept = self._left.pop(0) if self._left else {}
        recorded = {name: kept[name] for name in ("did", "given", "typed") if name in kept}
        if recorded != _key(act):
            raise StageError(f"the record has {recorded}, not {_key(act)}")
        self._now_s += kept["seconds"]
        return Said(kept["code"], "\n".join(kept["said"]), kept["seconds"])

    def up(self, say: Callable[[str], object]) -> Said:
        said = self.do(UP)
        for line in said.text.splitlines():
            say(line)
        return said

    def down(self) -> Said:
        return self.do(DOWN)

    def now_s(self) -> float:
        return self._now_s

    @property
    def is_over(self) -> bool:
        return not self._left


def _key(act: Act) -> dict[str, Any]:
    """An act in the record: what is put into it by its digest."""
    digest = hashlib.sha256(act.given.encode()).hexdigest()[:16]
    return {
        "did": " ".join(act.words),
        **({"given": digest} if act.given else {}),
        **({"typed": list(act.typed)} if act.typed else {}),
    }
