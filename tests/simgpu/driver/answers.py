"""The recorded answers of NVIDIA's drivers, recorded.tsv, and what another library answers else.

A line of the file is: library, question, name, CUDA version, answer; `ask` has the questions and
answers. It holds for the recorded driver of that version and for later ones, until the next line of
the same name. Without an answer the driver lacks the name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from tests.simgpu.driver.ask import UNKNOWN

Answers: TypeAlias = Mapping[str, Mapping[str, str]]
"""Question -> name -> answer, of one library."""

PATH: Final = Path(__file__).resolve().with_name("recorded.tsv")
_CRASHED: Final = "SIG"
VERSIONS: Final = (11040,)
"""The recorded drivers: 470."""


def read(library: str, version: int) -> Answers:
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for line in PATH.read_text().splitlines():
        of, question, name, since, answer = line.split("\t")
        if of == library and int(since) <= version:
            found[question][name] = answer
    return {
        question: {name: answer for name, answer in rows.items() if answer}
        for question, rows in found.items()
    }


class Difference(NamedTuple):
    question: str
    recorded: str
    answered: str


def differences(recorded: Answers, asked: Answers) -> Iterator[Difference]:
    """Return the differences of one library (cuda or nvml). Any answer passes if the recorded
    driver crashed."""
    real_calls, our_calls = recorded["calls"], asked["calls"]
    for name in sorted(real_calls.keys() & our_calls.keys()):
        for how, real, ours in zip(
            ("zeros", "pointers"),
            real_calls[name].split(" ", 1),
            our_calls[name].split(" ", 1),
            strict=True,
        ):
            if real != ours and not real.startswith(_CRASHED):
                yield Difference(f"{name} {how}", real, ours)
    for question in sorted(recorded.keys() - {"calls"}):
        rows = [part[question] for part in (recorded, asked)]
        for name in sorted({*rows[0], *rows[1]}):
            real, ours = (_row(of, question, name) for of in rows)
            if real != ours:
                yield Difference(f"{question} {name}", real, ours)


def _row(rows: Mapping[str, str], question: str, name: str) -> str:
    """An omitted row: of an unknown code or name, or that of the similar flags: 1 as 0, 2 as 0, 3
    as 2."""
    if name in rows:
        return rows[name]
    base, _, flags = name.partition(" flags=")
    if flags:
        return _row(rows, question, f"{base} flags=2" if flags == "3" else base)
    return UNKNOWN if question == "resolved" else rows.get("-1", "")
