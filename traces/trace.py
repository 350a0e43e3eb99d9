"""Reads a trace file: one process's calls of the driver, in the order in which they returned.

data/README.md describes the format. If a file violates it, TraceError names the line. This module
does not depend on the meaning of the driver's entries.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

DATA: Final = Path(__file__).parent / "data"
LETTERS: Final = sorted({path.name.split("-")[0] for path in DATA.glob("*.trace.gz")})
"""The letters of all recordings. A recording has one file for each process."""
_CALL: Final = re.compile(r"(\d+) (\d+) (\d+) (\w+ \d+(?: [\w.]+=\S*)*(?: >(?: \w+=\S+)*)?)$")
_START: Final = re.compile(r"# start monotonic_us=(\d+)")
_PRIMARY: Final = re.compile(r"# primary .*device=(\d+) context=0x([0-9a-f]+)")
_MARK: Final = "# mark "


class TraceError(Exception):
    """The file is not a trace. The text names the file and, if possible, the line."""


class Call(NamedTuple):
    line: int
    number: int
    """The call's number in the process, in the order in which calls began."""
    time_us: int
    """The time from the process's first call to the beginning of this call."""
    thread: int
    text: str
    """The entry, its result and its arguments, as in the file."""


class Mark(NamedTuple):
    """A text that the program wrote into the trace between two calls."""

    line: int
    text: str


@dataclass(frozen=True)
class Recording:
    name: str
    items: Sequence[Call | Mark]
    start_us: int
    """CLOCK_MONOTONIC at the first call, by which the processes of one recording are ordered."""
    memory_bytes: int = 0
    """The size of the GPU's memory; 0 if the program did not query it."""
    primary: Mapping[int, int] = field(default_factory=dict)
    """The device of each primary context whose handle was used before it was retained."""


class Words(NamedTuple):
    """A call's text, parsed."""

    entry: str
    result: int
    before: Mapping[str, str]
    after: Mapping[str, str]

    @property
    def numbers(self) -> Iterator[str]:
        """The decimal arguments, as they were before the call."""
        return (text for text in self.before.values() if text.isdecimal())


def words(text: str) -> Words:
    head, _, after = text.partition(" >")
    entry, result, *before = head.split()
    return Words(entry, int(result), _values(before), _values(after.split()))


def _values(words: Sequence[str]) -> Mapping[str, str]:
    return dict(word.split("=", 1) for word in words)


def read(path: Path) -> Recording:
    """Read a trace file. Raise TraceError."""
    items: list[Call | Mark] = []
    primary: dict[int, int] = {}
    start_us = 0
    try:
        with gzip.open(path, "rt", encoding="ascii") as file:
            lines = file.read().splitlines()
    except (OSError, EOFError, ValueError) as error:
        raise TraceError(f"{path}: {error}") from error
    for line, text in enumerate(lines, 1):
        if not text.startswith("#"):
            matched = _CALL.match(text)
            if matched is None:
                raise TraceError(f"{path}: line {line}: not a call: {text[:80]!r}")
            number, time_us, thread, call = matched.groups()
            items.append(Call(line, int(number), int(time_us), int(thread), call))
        elif text.startswith(_MARK):
            items.append(Mark(line, text.removeprefix(_MARK)))
        elif (begun := _START.match(text)) is not None:
            start_us = int(begun[1])
        elif (context := _PRIMARY.match(text)) is not None:
            primary[int(context[2], 16)] = int(context[1])
    calls = (each.text for each in items if isinstance(each, Call))
    sizes = [text for text in calls if text.startswith("cuDeviceTotalMem_v2 0 ")]
    memory_bytes = int(words(sizes[0]).after["a"]) if sizes else 0
    return Recording(path.name.split(".")[0], items, start_us, memory_bytes, primary)


def files(letter: str) -> Sequence[Path]:
    """Return the files of the recording with that letter."""
    return sorted(DATA.glob(f"{letter}-*.trace.gz"))
