"""The demo's output forms, and its end by an interrupt."""

from __future__ import annotations

import io
import re
import signal

import pytest

from lab.demo import node
from lab.demo.report import Report


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


BARS = [("one", 0.25, "25 %"), ("another", 1.1, "110 %")]


def test_bars_change_while_a_step_runs_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    with Report(out, plain=False, masked=True).watching("loads") as show:
        show(BARS)
    printed = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    assert f"one      {'█' * 10}{'░' * 30}  (25 %)" in printed
    assert f"another  {'▓' * 40}  (110 %)" in printed


@pytest.mark.parametrize(("out", "plain"), [(io.StringIO(), False), (Terminal(), True)])
def test_without_a_terminal_bars_are_printed_once(out: io.StringIO, plain: bool) -> None:
    report = Report(out, plain, masked=True)
    with report.watching("loads") as show:
        show(BARS)
    report.bars([("one", 0.5, "50 %")])
    assert out.getvalue() == f"  loads  (… s)\n  one  {'█' * 20}{'░' * 20}  (50 %)\n"


def test_an_interrupted_demo_of_one_node_reports_it(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_report: Report) -> None:
        raise KeyboardInterrupt

    try:
        code = node.shown(True, True, interrupted)
    except KeyboardInterrupt:
        pytest.fail("it would end in a traceback")
    assert code == 128 + signal.SIGINT
    assert capsys.readouterr().err == "\ndemo: interrupted; all that it started is removed\n"
