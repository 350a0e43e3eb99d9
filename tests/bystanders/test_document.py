"""docs/failures.md has the rows that are tested."""

from __future__ import annotations

import re
from typing import Final

from bench.faults.bystanders import AFTER, SITUATIONS, failing
from tests.bystanders.pods import ROWS
from tests.support import ROOT
from tools.programs import RELEASES

_TEXT: Final = (ROOT / "docs" / "failures.md").read_text()


def _column(head: str) -> list[str]:
    """The first cells under a table's head."""
    lines = _TEXT.partition(f"| {head} |")[2].splitlines()[2:]
    end = next((n for n, line in enumerate(lines) if not line.startswith("|")), len(lines))
    return [line.strip("| ").partition(" |")[0] for line in lines[:end]]


def test_each_pod_has_a_row_and_each_row_a_pod() -> None:
    assert sorted(_column("pod")) == sorted(ROWS)


def test_the_harm_of_an_agent_that_ends_is_on_each_containerd_what_its_nri_allows() -> None:
    """The figures are those of `python -m bench.faults.bystanders`."""
    rows = [line.strip("| ").split(" | ") for line in _TEXT.splitlines() if " of " in line]
    heads = next(line for line in _TEXT.splitlines() if line.startswith("| the agent |"))
    assert heads.strip("| ").split(" | ")[1:] == [each.title for each in RELEASES.values()]
    found = {row[0]: row[1:] for row in rows if row[0] in SITUATIONS}
    assert found.keys() == SITUATIONS.keys()
    for title, cells in found.items():
        for release, cell in zip(RELEASES.values(), cells, strict=True):
            failed, created = map(int, re.findall(r"^(\d+) of (\d+)", cell)[0])
            assert failed == created // AFTER * failing(release, title), (title, release.name)
