"""docs/failures.md, its tables and their tests agree."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

import pytest

from nri_plugin.policy.refusals import Refusal
from tests.node import __main__ as document
from tests.node.container_rows import CONTAINER_ROWS
from tests.node.failure_rows import FAILURE_ROWS
from tests.node.table import Row
from tests.nri_plugin import objects
from tests.nri_plugin.policy.plan_scene import A, B
from tests.nri_plugin.policy.test_checks import CASES
from tests.support import ROOT

DOCUMENT: Final = ROOT / "docs/failures.md"
ROWS: Final = (*FAILURE_ROWS, *CONTAINER_ROWS)
OF_THE_POLICY: Final = [row for row in CONTAINER_ROWS if row.test.startswith("test_refused[")]


def test_the_document_is_written_from_the_tables(tmp_path: Path) -> None:
    copy = tmp_path / "failures.md"
    copy.write_text(DOCUMENT.read_text())
    document.main(copy)
    assert copy.read_text() == DOCUMENT.read_text(), "python -m tests.node docs/failures.md"
    assert not any("|" in row.given + row.does + row.sees for row in ROWS)


def test_every_row_has_a_test_and_every_test_of_the_policy_a_row() -> None:
    defined = {
        node.name: path
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    named = {row.test.partition("[")[0] for row in ROWS}
    assert named - defined.keys() == set()
    policy = {name for name, path in defined.items() if path.match("node/test_policy*.py")}
    assert {name for name in policy if name.startswith("test_")} - named == set()


@pytest.mark.parametrize("row", OF_THE_POLICY, ids=lambda row: row.test)
def test_a_refusal_of_the_policy_has_the_words_of_its_row(row: Row) -> None:
    case = CASES[row.test.partition("[")[2].rstrip("]")]
    result = objects.decide(case.pod, case.container, (A, B), case.specs, case.paths)
    assert isinstance(result, Refusal) and row.matches(result.text), result
