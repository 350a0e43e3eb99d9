"""Finds functions of the product, in Python and C, that are longer than 60 lines.

A function's lines are counted from its signature to its end.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Final

MAX_LINES: Final = 60
PATTERNS: Final = tuple(
    f"{part}/*.{kind}"
    for part in ("gpuslice", "nri_plugin", "scheduler", "shim")
    for kind in ("py", "c", "h")
)
_C_NAME: Final = re.compile(r"(\w+)\(")


def _in_python(text: str) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def _in_c(text: str) -> Iterator[tuple[str, int]]:
    """Find functions by lines that are only `{`. clang-format writes only functions' braces so."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line != "{":
            continue
        first = number - 1
        while first > 0 and lines[first][:1] in ("\t", " "):
            first -= 1
        name = _C_NAME.search(lines[first])
        last = next((n for n, each in enumerate(lines[number:], number) if each[:1] == "}"), number)
        yield name[1] if name else lines[first], last - first + 1


def lengths(name: str, text: str) -> Iterator[tuple[str, int]]:
    """Yield for each function the text `FILE FUNCTION` and the number of lines."""
    found = _in_python(text) if name.endswith(".py") else _in_c(text)
    return ((f"{name} {function}", lines) for function, lines in found)


def findings(texts: Mapping[str, str]) -> Iterator[str]:
    """Yield a text for each function that is too long. texts: the files' contents by name."""
    for name, text in texts.items():
        for function, lines in lengths(name, text):
            if lines > MAX_LINES:
                yield f"{function}: {lines} lines, at most {MAX_LINES}\n"
