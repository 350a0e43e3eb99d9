"""Lines of the log: one record, one line, whatever a tenant wrote into it."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from kube.log_lines import TRACEBACK_CHARS_MAX, VALUE_CHARS_MAX, Format, Formatter, Line


def written(style: Format, message: object, failed: bool = False) -> str:
    trace = None
    if failed:
        try:
            raise ValueError("x" * 2 * TRACEBACK_CHARS_MAX)
        except ValueError:
            trace = sys.exc_info()
    record = logging.LogRecord("scheduler.leader", logging.INFO, "", 0, message, (), trace)
    record.created = 0.5
    return Formatter(style).format(record)


def test_logfmt_quotes_what_is_not_plain() -> None:
    assert written(Format.LOGFMT, Line("lease", role="holding", after_s=1.5, left=None)) == (
        "time=1970-01-01T00:00:00.500Z level=info logger=scheduler.leader msg=lease role=holding"
        " after_s=1.5"
    )
    assert written(Format.LOGFMT, "two words").endswith('msg="two words"')


def test_json_has_numbers_as_they_are() -> None:
    told = json.loads(written(Format.JSON, Line("bound", ms=3, done=True, pod="a/b")))
    assert told["msg"] == "bound" and told["ms"] == 3 and told["done"] is True
    assert told["pod"] == "a/b" and told["level"] == "info"


@pytest.mark.parametrize("style", list(Format))
def test_no_line_break_or_terminal_code_gets_through(style: Format) -> None:
    line = written(style, Line("m", text="a\nb\x1b[31m\x7f\u202e"))
    assert all(0x20 <= ord(character) < 0x7F for character in line)


@pytest.mark.parametrize("style", list(Format))
def test_values_and_tracebacks_are_capped(style: Format) -> None:
    line = written(style, Line("m", text="x" * 5000), failed=True)
    assert "x" * VALUE_CHARS_MAX + "..." in line
    assert "traceback" in line and len(line) < TRACEBACK_CHARS_MAX + 2 * VALUE_CHARS_MAX


def test_a_line_reads_as_text_too() -> None:
    assert str(Line("bound", node="n 1")) == 'bound node="n 1"'
