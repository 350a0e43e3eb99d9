"""Documents that name things of the code name things that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def test_each_row_of_the_failures_is_a_test() -> None:
    text = (ROOT / "docs/failures.md").read_text()
    named = re.findall(r"`(test_\w+)` \|$", text, re.MULTILINE)
    paths = [ROOT / "tests/node/test_faults.py", *(ROOT / "tests/shim").glob("test_*.py")]
    source = "".join(path.read_text() for path in paths)
    defined = set(re.findall(r"^def (test_\w+)", source, re.MULTILINE))
    rows = [line for line in text.splitlines() if re.match(r"\| (?!what is wrong)", line)]
    assert len(named) == len(rows) >= 10
    assert set(named) <= defined


def test_each_test_that_the_environment_names_is_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/environment.md").read_text()))
    sources = "".join(path.read_text() for path in (ROOT / "tests/shim").glob("test_*.py"))
    assert len(named) > 20
    assert named <= set(re.findall(r"^def (test_\w+)", sources, re.MULTILINE))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), target


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
