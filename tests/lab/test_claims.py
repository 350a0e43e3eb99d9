"""The demo's tally: a failed claim is printed, and sets the exit status."""

from __future__ import annotations

import io

from lab.demo.claims import Story


def _told(*verdicts: bool, masked: bool = True) -> tuple[int, str]:
    out = io.StringIO()
    story = Story(out, plain=True, masked=masked)
    with story.doing("a step"):
        pass
    for index, verdict in enumerate(verdicts):
        story.claim(f"claim {index}", verdict, "something else")
    return story.end(), out.getvalue()


def test_all_claims_hold() -> None:
    code, text = _told(True, True)
    assert code == 0
    assert "✓ claim 0" in text
    assert "2 claims checked as they were printed; all hold." in text


def test_one_false_claim_fails_the_whole() -> None:
    code, text = _told(True, False)
    assert code == 1
    assert "✗ claim 1\n    found: something else" in text
    assert "claims that do not hold: 1" in text


def test_a_story_without_claims_proves_nothing() -> None:
    assert _told()[0] == 1


def test_masked_output_is_the_same_each_time() -> None:
    assert _told(True) == _told(True)
    assert "(… s)" in _told(True)[1]
    assert "(… s)" not in _told(True, masked=False)[1]
