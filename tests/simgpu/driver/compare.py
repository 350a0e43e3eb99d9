"""Differences between a recorded driver and another library's answers to the same calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from tests.simgpu.driver.answers import UNKNOWN

_CRASHED: Final = "SIG"


class Difference(NamedTuple):
    question: str
    recorded: str
    answered: str


def differences(recorded: Mapping[str, Any], asked: Mapping[str, Any]) -> Iterator[Difference]:
    """For one part (cuda or nvml). If the recorded driver crashed, any answer passes."""
    both = sorted({*recorded["exports"], *asked["exports"]})
    for name in both:
        has = [f"{name in part['exports']}" for part in (recorded, asked)]
        if has[0] != has[1]:
            yield Difference(f"export {name}", *has)
    for name in sorted(recorded["calls"].keys() & asked["calls"].keys()):
        for how, real, ours in zip(
            ("zeros", "pointers"),
            recorded["calls"][name].split(" ", 1),
            asked["calls"][name].split(" ", 1),
            strict=True,
        ):
            if real != ours and not real.startswith(_CRASHED):
                yield Difference(f"{name} {how}", real, ours)
    for table in ("error_names", "error_texts"):
        rows = [part.get(table, {}) for part in (recorded, asked)]
        for code in sorted({*rows[0], *rows[1]}, key=int):
            real, ours = (row.get(code, row.get("-1", "")) for row in rows)
            if real != ours:
                yield Difference(f"{table} {code}", real, ours)
    for key in ("version", "unknown_export_table"):
        if recorded.get(key) != asked.get(key):
            yield Difference(key, recorded[key], asked[key])
    for entry, rows_of in recorded.get("resolved", {}).items():
        yield from _resolved(entry, rows_of, asked["resolved"].get(entry, {}))


def _resolved(
    entry: str, recorded: Mapping[str, str], asked: Mapping[str, str]
) -> Iterator[Difference]:
    nothing = UNKNOWN if entry == "cuGetProcAddress_v2" else "0 500/-1/untouched"
    for row in sorted({*recorded, *asked}):
        real, ours = (_row(rows, row, nothing) for rows in (recorded, asked))
        if real != ours:
            yield Difference(f"{entry} {row}", real, ours)


def _row(rows: Mapping[str, str], row: str, nothing: str) -> str:
    """An omitted row equals that of the similar flags: 1 as 0, 2 as 0, 3 as 2."""
    if row in rows:
        return rows[row]
    name, _, flags = row.partition(" flags=")
    if not flags:
        return nothing
    return _row(rows, f"{name} flags=2" if flags == "3" else name, nothing)
