"""`make demo`: the README's excerpt of its document, variants of the pod, and interruption."""

from __future__ import annotations

import re
import signal

import pytest

from lab.demo import __main__ as demo
from lab.demo import node, seed, story
from lab.demo.report import Report
from tests.support import ROOT


def test_readme_shows_an_excerpt_of_the_demo() -> None:
    (part,) = re.findall(r"```text\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    whole = demo.DOCUMENT.read_text().splitlines()
    assert set(part.splitlines()) <= {re.sub(r"  \([\d.]+ s\)$", "", line) for line in whole}


def test_the_documents_pod_is_named_as_it_is_there() -> None:
    text = seed.PATH.read_text()
    assert f"name: {story.FIRST}\n" in text
    assert f"schedulerName: {seed.SCHEDULER}\n" in text
    assert seed.like(story.FIRST) == text
    assert seed.like("other", 25).count(": 25\n") == 4


def test_an_interrupted_demo_of_one_node_reports_it(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_report: Report) -> None:
        raise KeyboardInterrupt

    try:
        code = node.main(interrupted)
    except KeyboardInterrupt:
        pytest.fail("it would end in a traceback")
    assert code == 128 + signal.SIGINT
    assert capsys.readouterr().err == "\ndemo: interrupted; all that it started is removed\n"
