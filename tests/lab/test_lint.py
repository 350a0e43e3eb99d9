"""`make lint` finds vague words in every text, and long lines in documents alone."""

from __future__ import annotations

import pytest

from tools import lint

LONG = f"{'words ' * 20}[and a link](https://example.com)"


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.S", "/* who calls */", ["a.S:1: who: name the component instead\n"]),
        ("a.md", "whole\nNobody waits.", ["a.md:2: Nobody: name the component instead\n"]),
        ("a.py", "def _who(one):", ["a.py:1: who: name the component instead\n"]),
        ("a.txt", "nobody:x:65534:65534", []),
        ("a.md", LONG, [f"a.md:1: {len(LONG)} columns, at most 120\n"]),
        ("a.md", f"```\n{LONG}\n```\n| {LONG} |", []),
        ("a.c", LONG, []),
    ],
)
def test_words_and_long_lines(name: str, text: str, found: list[str]) -> None:
    assert list(lint.findings(name, text)) == found
