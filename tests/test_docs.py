"""Documents name only functions, files and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import ROOT, defined_tests

PAGES = ("*.md", ".github/*.md", "docs/**/*.md", "simgpu/*.md")
DOCUMENTS = sorted(path for pages in PAGES for path in ROOT.glob(pages))
CALL = re.compile(r"`(cu[A-Z]\w+)(\.\.\.)?`")
HOOK, END = r"HOOK\(", r"(_v\d)?,"


def test_each_test_that_a_document_names_is_there() -> None:
    named = {
        (document.name, name)
        for document in DOCUMENTS
        for name in re.findall(r"`(test_\w+)`", document.read_text())
    }
    assert {document for document, _ in named} >= {"library.md", "memory.md"}
    there = defined_tests()
    assert sorted(each for each in named if each[1] not in there) == []


def test_each_file_of_tests_that_documents_the_charges_exists() -> None:
    named = set(re.findall(r"`([\w/]*test_\w+\*?\.py)`", (ROOT / "docs/memory.md").read_text()))
    assert len(named) > 8
    for name in named:
        assert [*ROOT.glob(name)] or [*(ROOT / "tests/shim").rglob(name)], name


def test_each_call_that_is_charged_is_a_hook() -> None:
    """In the tables of docs/memory.md, only calls that allocate host memory may lack a hook."""
    hooks = (ROOT / "shim/src/loader/hooks.def").read_text()
    rows = (ROOT / "docs/memory.md").read_text().splitlines()
    paths = [row.split("|")[1] for row in rows if row.startswith("| ")]
    calls = {call for path in paths if "host memory" not in path for call in CALL.findall(path)}
    assert len(calls) > 8
    missing = {
        call for call, dots in calls if not re.search(HOOK + call + ("" if dots else END), hooks)
    }
    assert missing == set()


def test_every_document_is_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    ahead = [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page in reached:
            continue
        reached.add(page)
        if page.is_dir():
            ahead += page.glob("*.md")
        elif page.suffix == ".md":
            links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
            ahead += [(page.parent / link).resolve() for link in links if "://" not in link]
    # GitHub itself shows the template.
    assert set(DOCUMENTS) - reached == {ROOT / ".github/pull_request_template.md"}
    assert ROOT / "tests/shim/test_matrix.py" in reached


def _anchors(document: Path) -> set[str]:
    """Return the anchors that GitHub gives the document's headings."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    for name, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", document.read_text()):
        target = document.parent / name if name else document
        assert target.exists(), name
        assert not anchor or anchor in _anchors(target), f"{name}#{anchor}"


def test_the_readme_shows_the_example_pod_as_it_is() -> None:
    (pod,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert pod == (ROOT / "docs/examples/half.yaml").read_text()
