"""`make lint` finds vague words, long lines and functions, and too many or too long documents."""

from __future__ import annotations

import shlex

import pytest
import yaml

from tests.support import ROOT
from tools import functions, lint

LONG = f"{'words ' * 20}[and a link](https://example.com)"


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.S", "/* who calls */", ["a.S:1: who: name the component instead\n"]),
        ("a.md", "whole\nNobody waits.", ["a.md:2: Nobody: name the component instead\n"]),
        ("a.md", LONG, [f"a.md:1: {len(LONG)} columns, at most 120\n"]),
        ("a.md", f"```\n{LONG}\n```\n| {LONG} |", []),
    ],
)
def test_words_and_long_lines(name: str, text: str, found: list[str]) -> None:
    assert list(lint.findings(name, text)) == found


def test_a_long_readme_and_too_many_guides() -> None:
    guides = [f"docs/{n}.md" for n in range(20)] + ["docs/adr/1.md", "README.md"]
    assert list(lint.excess(guides, "line\n" * 120)) == []
    assert list(lint.excess([*guides, "docs/a.md"], "line\n" * 121)) == [
        "README.md: 121 lines, at most 120\n",
        "docs: 21 guides, at most 20\n",
    ]


_BODY = "    pass\n" * 59
_C_BODY = "\tcall();\n" * 57
_C_LONG = f"static int\tspare;\n\nint both(int a,\n\t int b)\n{{\n{_C_BODY}}}\n"


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.py", f"def one():\n{_BODY}", []),
        ("a.py", f"class A:\n def one():\n{_BODY}    pass\n", ["a.py one: 61 lines, at most 60\n"]),
        ("a.c", _C_LONG, ["a.c both: 61 lines, at most 60\n"]),
    ],
)
def test_long_functions(name: str, text: str, found: list[str]) -> None:
    assert list(functions.findings({name: text})) == found


def test_the_hooks_of_pre_commit_name_checks_of_lint() -> None:
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    quick, whole = (shlex.split(hook["entry"]) for hook in local["hooks"])
    assert quick[:3] == [".venv/bin/python", "-m", "tools.lint"] and whole == ["make", "lint"]
    assert quick[3:] and {*quick[3:]} <= {*lint.TITLES}


def test_lint_refuses_an_unknown_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert lint.main(["rust"]) == 2
    assert "lint: invalid value rust: must be one of words, " in capsys.readouterr().err
