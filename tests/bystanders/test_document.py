"""docs/failures.md has the rows that are tested."""

from __future__ import annotations

import re

from bench.faults.bystanders import AFTER, SITUATIONS, failing
from tests.bystanders.pods import ROWS
from tests.node.table import DOCUMENT
from tests.support import table_below
from tools.programs import RELEASES


def test_each_pod_has_a_row_and_each_row_a_pod() -> None:
    assert sorted(row[0] for row in table_below(DOCUMENT.read_text(), "pod")) == sorted(ROWS)


def test_the_counts_of_failures_follow_from_each_releases_nri() -> None:
    """bench.faults.bystanders computes the documented counts from each release's properties."""
    heads = " | ".join(["the agent", *(each.title for each in RELEASES.values())])
    found = {row[0]: row[1:] for row in table_below(DOCUMENT.read_text(), heads)}
    assert found.keys() == SITUATIONS.keys()
    for title, cells in found.items():
        for release, cell in zip(RELEASES.values(), cells, strict=True):
            failed, created = map(int, re.findall(r"^(\d+) of (\d+)", cell)[0])
            assert failed == created // AFTER * failing(release, title), (title, release.name)
