"""The policy's table, its document and its tests are one set."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.node import cases, failure_rows
from tests.support import ROOT

DOCUMENT = ROOT / "docs/failures.md"


def test_the_document_is_written_from_the_table(tmp_path: Path) -> None:
    copy = tmp_path / "failures.md"
    copy.write_text(DOCUMENT.read_text())
    cases.main(copy)
    assert copy.read_text() == DOCUMENT.read_text(), "python -m tests.node.cases docs/failures.md"
    tests = [case.test for case in cases.CASES] + [row.test for row in failure_rows.FAILURE_ROWS]
    assert all(f"`{test}`" in copy.read_text() for test in tests)
    empty = f"A\n{cases.BEGIN}{cases.END}B\n{cases.BEGIN}old{cases.END}C\n"
    assert cases.renewed(cases.renewed(empty)) == cases.renewed(empty)


def test_every_fault_has_a_test_of_its_name() -> None:
    defined = {
        node.name
        for place in ("tests/node", "tests/shim", "tests/nri_plugin")
        for path in (ROOT / place).rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {row.test for row in failure_rows.FAILURE_ROWS} <= defined
    assert all("|" not in row.wrong + row.happens + row.says for row in failure_rows.FAILURE_ROWS)


def test_every_row_has_a_test_of_its_name_and_every_test_a_row() -> None:
    defined = [
        node.name
        for path in sorted((ROOT / "tests/node").glob("test_policy*.py"))
        for node in ast.parse(path.read_bytes()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    assert sorted(defined) == sorted(case.test for case in cases.CASES)


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_a_row_has_text_in_every_column(case: cases.Case) -> None:
    assert all((case.given, case.does, case.sees))
    assert "|" not in case.given + case.does + case.sees
    if case.does.startswith("refuses"):
        assert re.search("`[^`]+`", case.sees), "a refusal says its words"
