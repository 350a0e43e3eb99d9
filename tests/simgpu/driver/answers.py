"""The recorded answers of NVIDIA's drivers, recorded.tsv, and how simgpu's differ from them.

A line of the file is: library, question, name, CUDA version, answer; `ask` has the questions and
answers. It holds for the recorded driver of that version. Without an answer the driver lacks the
name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from tests.simgpu.driver.ask import UNKNOWN

Answers: TypeAlias = Mapping[str, Mapping[str, str]]
"""Question -> name -> answer, of one library."""

VERSION: Final = 11040
"""The CUDA version of the recorded driver: 470."""
_PATH: Final = Path(__file__).resolve().with_name("recorded.tsv")
_CRASHED: Final = "SIG"
_CHECKED_FIRST: Final = (
    r"cuCtxDestroy(_v2)?|cuEventQuery|cuEventSynchronize|cuGraphInstantiateWithParams(_ptsz)?"
    r"|cuIpcGetMemHandle|cuLaunchKernelEx(_ptsz)?|cuMemMapArrayAsync(_ptsz)?"
    r"|cuStreamBeginCaptureToGraph(_ptsz)?|cuStreamEndCapture(_ptsz)?"
)
KNOWN: Final = {
    # NVIDIA's driver checks some arguments before it finds that there was no cuInit.
    "cuda": re.compile(rf"({_CHECKED_FIRST}) (zeros|pointers)"),
    # One libnvidia-ml, of driver 580, for all generations.
    "nvml": re.compile(r"errors 2[1-9]"),
}
"""By library, the known differences between simgpu and the recorded driver: a Difference's whole
question."""


def recorded(library: str) -> Answers:
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for line in _PATH.read_text().splitlines():
        of, question, name, since, answer = line.split("\t")
        if of == library and int(since) == VERSION and answer:
            found[question][name] = answer
    return found


class Difference(NamedTuple):
    question: str
    recorded: str
    answered: str


def differences(real: Answers, asked: Answers) -> Iterator[Difference]:
    """Return the differences of one library (cuda or nvml). Any answer passes if the recorded
    driver crashed."""
    for name in sorted(real["calls"].keys() & asked["calls"].keys()):
        both = (answers["calls"][name].split(" ", 1) for answers in (real, asked))
        for how, theirs, ours in zip(("zeros", "pointers"), *both, strict=True):
            if theirs != ours and not theirs.startswith(_CRASHED):
                yield Difference(f"{name} {how}", theirs, ours)
    for question in sorted(real.keys() - {"calls"}):
        for name in sorted({*real[question], *asked[question]}):
            theirs, ours = (_row(answers[question], question, name) for answers in (real, asked))
            if theirs != ours:
                yield Difference(f"{question} {name}", theirs, ours)


def _row(rows: Mapping[str, str], question: str, name: str) -> str:
    """An omitted row: of an unknown code or name, or that of the similar flags: 1 as 0, 2 as 0, 3
    as 2."""
    if name in rows:
        return rows[name]
    base, _, flags = name.partition(" flags=")
    if flags:
        return _row(rows, question, f"{base} flags=2" if flags == "3" else base)
    return UNKNOWN if question == "resolved" else rows.get("-1", "")
