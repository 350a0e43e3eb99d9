"""The recorded answers of NVIDIA's drivers: their file, recorded.tsv.

A line is: library, question, name, CUDA version, answer; `ask` has the questions and answers. It
holds for the recorded driver of that version and for later ones, until the next line of the same
name. Without an answer the driver lacks the name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

Answers: TypeAlias = Mapping[str, Mapping[str, str]]
"""Question -> name -> answer, of one library."""

PATH: Final = Path(__file__).resolve().with_name("recorded.tsv")
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
