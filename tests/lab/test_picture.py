"""docs/demo.md's sample of the demo: a recorded run, replayed here without a cluster."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lab.demo import command_line as demo
from lab.demo import seed, story
from tests.support import ROOT

_STALE = "the picture is stale: make demo-picture"


def test_the_document_has_the_demo_of_its_record() -> None:
    written = demo.DOCUMENT.read_text()
    assert demo.in_document(written) == written, _STALE


def test_readme_shows_an_excerpt_of_the_demo() -> None:
    (part,) = re.findall(r"```text\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    whole = [re.sub(r"  \([\d.]+ s\)$", "", line) for line in demo.picture().splitlines()]
    assert set(part.splitlines()) <= set(whole), _STALE


def test_the_picture_has_all_checks() -> None:
    picture = demo.picture()
    assert f"{picture.count('  ✓ ')} checks, all passed." in picture
    assert "✗" not in picture


@pytest.mark.parametrize(
    ("output", "other"),
    [
        ('\\"minor\\":1', '\\"minor\\":0'),
        ("11520MiB", "23040MiB"),
        ("no GPU with enough", "Insufficient cpu"),
        ('\\"more\\": 2', '\\"more\\": 0'),
        ('"code": 1', '"code": 0'),
    ],
)
def test_checks_are_made_on_the_record(output: str, other: str, tmp_path: Path) -> None:
    """Each of these answers, if changed, breaks a check."""
    whole = demo.RECORD.read_text()
    assert output in whole
    changed = tmp_path / "changed.json"
    changed.write_text(whole.replace(output, other))
    with pytest.raises(RuntimeError, match="✗"):
        demo.picture(changed)


def test_a_changed_demo_does_not_match_the_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(seed, "like", lambda name, percent=50: f"another {name}")
    with pytest.raises(RuntimeError, match="the record has"):
        demo.picture()


def test_a_record_of_another_length_is_refused(tmp_path: Path) -> None:
    acts = json.loads(demo.RECORD.read_text())
    longer = tmp_path / "longer.json"
    longer.write_text(json.dumps([*acts, acts[-1]]))
    with pytest.raises(RuntimeError, match="not of this demo"):
        demo.picture(longer)
    longer.write_text(json.dumps(acts[:-1]))
    with pytest.raises(RuntimeError, match="the record has"):
        demo.picture(longer)


def test_the_documents_pod_is_named_as_it_is_there() -> None:
    text = seed.PATH.read_text()
    assert f"name: {story.FIRST}\n" in text
    assert f"schedulerName: {seed.SCHEDULER}\n" in text
    assert seed.like(story.FIRST) == text
    assert seed.like("other", 25).count(": 25\n") == 4
