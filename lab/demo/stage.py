"""The commands of the demo and their output: on a live cluster, or from a record of a run.

The story (story.py) uses only this interface: so a recorded run can be replayed, check for check,
without a cluster, and the sample in docs/demo.md is a run's (`Recorded`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

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


UP: Final = Act(("up",))
DOWN: Final = Act(("down",))


@dataclass(frozen=True, slots=True)
class Output:
    """Exit status, output and duration of an act. code: 0 for success."""

    code: int
    text: str
    seconds: float


class StageError(RuntimeError):
    """The act could not be performed; the text says why."""


class Stage(Protocol):
    """Each method raises StageError."""

    def do(self, act: Act, holds: Holds | None = None, again_s: float = AGAIN_S) -> Output:
        """holds: the act is repeated, `again_s` after it ended, until this is true of its output,
        or a timeout."""

    def up(self, log: Callable[[str], object]) -> Output:
        """Start the cluster; `log` gets a line for each completed step."""

    def down(self) -> Output:
        """End it; the output lists what is left, one item a line: empty if all is removed."""

    def now_s(self) -> float:
        """The clock by which acts are timed."""


# --- records ----------------------------------------------------------------------------------


class Recording:
    """A stage that forwards to another, and records the output."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._kept: list[dict[str, Any]] = []

    def do(self, act: Act, holds: Holds | None = None, again_s: float = AGAIN_S) -> Output:
        return self._keep(act, self._stage.do(act, holds, again_s))

    def up(self, log: Callable[[str], object]) -> Output:
        return self._keep(UP, self._stage.up(log))

    def down(self) -> Output:
        return self._keep(DOWN, self._stage.down())

    def now_s(self) -> float:
        return self._stage.now_s()

    def _keep(self, act: Act, output: Output) -> Output:
        self._kept.append(
            {
                **_key(act),
                "code": output.code,
                "output": output.text.split("\n"),
                "seconds": round(output.seconds, 2),
            }
        )
        return output

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self._kept, indent=1, ensure_ascii=False) + "\n")


class Recorded:
    """A recorded run, replayed. An act that differs from the run's next one raises StageError: the
    record is stale."""

    def __init__(self, path: Path) -> None:
        self._left: list[dict[str, Any]] = json.loads(path.read_text())
        self._now_s = 0.0

    def do(self, act: Act, holds: Holds | None = None, again_s: float = AGAIN_S) -> Output:
        kept = self._left.pop(0) if self._left else {}
        recorded = {name: kept[name] for name in ("command", "given", "typed") if name in kept}
        if recorded != _key(act):
            raise StageError(f"the record has {recorded}, not {_key(act)}")
        self._now_s += kept["seconds"]
        return Output(kept["code"], "\n".join(kept["output"]), kept["seconds"])

    def up(self, log: Callable[[str], object]) -> Output:
        output = self.do(UP)
        for line in output.text.splitlines():
            log(line)
        return output

    def down(self) -> Output:
        return self.do(DOWN)

    def now_s(self) -> float:
        return self._now_s

    @property
    def is_over(self) -> bool:
        return not self._left


def _key(act: Act) -> dict[str, Any]:
    """An act in the record; its input is stored as a digest."""
    digest = hashlib.sha256(act.given.encode()).hexdigest()[:16]
    return {
        "command": " ".join(act.words),
        **({"given": digest} if act.given else {}),
        **({"typed": list(act.typed)} if act.typed else {}),
    }
