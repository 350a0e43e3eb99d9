"""The tables and the example in docs/scheduling.md match the code."""

from __future__ import annotations

import re
from pathlib import Path

from scheduler.command_line import parser, variable
from scheduler.core.reasons import Reason
from scheduler.endpoint import PAGES
from scheduler.events import REASONS
from scheduler.metrics import Metrics
from tests.scheduler import commands
from tests.support import ROOT, assert_metrics, table_below

TEXT = (ROOT / "docs/scheduling.md").read_text()


def block(name: str) -> str:
    """Return the code block that follows the comment `<!-- name -->` in the document."""
    return re.split(r"```\w*\n", TEXT[TEXT.index(f"<!-- {name} -->") :])[1].partition("```")[0]


def test_the_settings_are_those_of_the_code() -> None:
    (subparsers,) = (each for each in parser({})._actions if isinstance(each.choices, dict))
    serve = subparsers.choices["serve"]  # type: ignore[index]
    known = {each.option_strings[0]: each.default for each in serve._actions if each.dest != "help"}
    written = {row[0].strip("`"): row[1:] for row in table_below(TEXT, "flag | variable")}
    assert written.keys() == known.keys()
    for flag, default in known.items():
        assert written[flag][0] == f"`{variable(flag)}`"
        if default:
            assert written[flag][1].strip("`") == default


def test_the_pages_are_those_of_the_code() -> None:
    assert [row[0].strip("`") for row in table_below(TEXT, "page")] == list(PAGES)


def test_the_metrics_are_those_of_the_code() -> None:
    assert_metrics(TEXT, Metrics())


def test_the_events_are_those_of_the_code() -> None:
    assert [row[0].strip("`") for row in table_below(TEXT, "reason | about")] == list(REASONS)


def test_every_reason_has_one_row_with_the_text_of_the_code() -> None:
    rows = table_below(TEXT, "reason | text")
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(listed) == sorted(reason.name for reason in Reason if reason is not Reason.FITS)
    for row in rows:
        texts = re.findall(r"`([^`]+)`", row[1])
        for name, text in zip(re.findall(r"`(\w+)`", row[0]), texts, strict=True):
            parts = [re.escape(part.strip()) for part in text.split("...")]
            assert re.search("^" + ".*".join(parts) + "$", Reason[name].text), (name, text)


def test_the_simulation_comes_out_as_it_is_shown(tmp_path: Path) -> None:
    command, _, output = block("simulate").partition("\n")
    for name in ("fleet.yaml", "pod.yaml"):
        (tmp_path / name).write_text(block(name))
    arguments = command.removeprefix("$ gpuslice ").split()
    arguments = [str(tmp_path / a) if a.endswith(".yaml") else a for a in arguments]
    done = commands.run(*arguments)
    assert done.stdout.splitlines() == output.splitlines()
    assert done.exit_code == 1
