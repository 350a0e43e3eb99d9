"""The demo's output forms, and its end by an interrupt."""

from __future__ import annotations

import signal

import pytest

from lab.demo import node
from lab.demo.report import Report


def test_an_interrupted_demo_of_one_node_reports_it(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_report: Report) -> None:
        raise KeyboardInterrupt

    try:
        code = node.main(interrupted)
    except KeyboardInterrupt:
        pytest.fail("it would end in a traceback")
    assert code == 128 + signal.SIGINT
    assert capsys.readouterr().err == "\ndemo: interrupted; all that it started is removed\n"
