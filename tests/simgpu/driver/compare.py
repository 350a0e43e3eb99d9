"""Differences between a recorded driver and another library's answers to the same calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from tests.simgpu.driver.answers import Answers
from tests.simgpu.driver.ask import UNKNOWN

_CRASHED: Final = "SIG"


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
