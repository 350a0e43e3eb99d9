"""docs/failures.md agrees with its tables and its tests."""

from __future__ import annotations

import pytest

from nri_plugin.policy.refusals import Refusal
from tests.node.table import CONTAINER_ROWS, FAILURE_ROWS, Row
from tests.nri_plugin import objects
from tests.nri_plugin.policy.plan_scene import A, B
from tests.nri_plugin.policy.test_checks import CASES
from tests.support import defined_tests

OF_THE_POLICY = [row for row in CONTAINER_ROWS if row.test.startswith("test_refused[")]


def test_every_row_has_a_test_and_every_test_of_the_policy_a_row() -> None:
    defined = defined_tests()
    named = {row.test.partition("[")[0] for row in (*FAILURE_ROWS, *CONTAINER_ROWS)}
    assert named - defined.keys() == set()
    policy = {name for name, path in defined.items() if path.match("node/test_policy*.py")}
    assert len(policy) > 20 and policy - named == set()


@pytest.mark.parametrize("row", OF_THE_POLICY, ids=lambda row: row.test)
def test_a_refusal_of_the_policy_has_the_words_of_its_row(row: Row) -> None:
    case = CASES[row.test.partition("[")[2].rstrip("]")]
    result = objects.decide(case.pod, case.container, (A, B), case.specs, case.paths)
    assert isinstance(result, Refusal) and row.matches(result.text), result
