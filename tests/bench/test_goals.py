"""A benchmark's goals apply to unrounded figures of full runs, and not to quick runs."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

from bench import Result, __main__


def result(**figures: tuple[float, float | None, float | None]) -> Result:
    """Return a result with these figures. Each is given as (value, upper goal, lower goal)."""
    made = Result(("",))
    for name, (value, at_most, at_least) in figures.items():
        made.add(name, value, at_most, at_least)
    return made


def test_a_goal_from_below_is_a_goal() -> None:
    assert result(a=(2.0, None, 2.0)).met
    assert not result(a=(1.9, None, 2.0)).met
    goals = result(a=(1.0, 1.0, 1.0), b=(2.0, 3.0, None)).goals
    assert goals == {"a": "<= 1, >= 1", "b": "<= 3"}


@pytest.mark.parametrize("quick", [False, True])
def test_a_quick_run_is_marked_and_judges_no_goal(
    quick: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missed = SimpleNamespace(run=lambda _: result(a=(2.0, 1.0, None)))
    monkeypatch.setitem(sys.modules, "bench.shim", missed)
    assert __main__.main(["shim", "--quick" if quick else "--check"]) == (0 if quick else 1)
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (said["quick"], said["met"]) == (quick, None if quick else False)
    assert said["goals"] == ({} if quick else {"a": "<= 1"})
