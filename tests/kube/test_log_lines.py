"""Each record becomes one line of the log, whatever text a tenant has put into the record."""

from __future__ import annotations

import json
import logging
import shlex
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.kube import log_lines as logs
from gpuslice.kube.log_lines import Format, Formatter, Line

HOSTILE = 'pod\nlevel=error msg="forged" \x1b[2J\x7f\u2028\u202e\x85 caf\u00e9'


def written(message: object, style: Format, *args: object, error: str = "") -> str:
    record = logging.LogRecord("name", logging.INFO, __file__, 1, message, args, None)
    if error:
        try:
            raise ValueError(error)
        except ValueError:
            record.exc_info = sys.exc_info()
    record.created = 1_700_000_000.25
    return Formatter(style).format(record)


def test_logfmt_and_json() -> None:
    line = Line("decision", request="CreateContainer", ms=1.23456789, n=3, ok=True, left_out=None)
    assert written(line, Format.LOGFMT) == (
        "time=2023-11-14T22:13:20.250Z level=info logger=name msg=decision"
        " request=CreateContainer ms=1.23457 n=3 ok=True"
    )
    head = {"time": "2023-11-14T22:13:20.250Z", "level": "info", "logger": "name"}
    said = json.loads(written(Line("decision", n=3, text="a b"), Format.JSON))
    assert said == {**head, "msg": "decision", "n": 3, "text": "a b"}
    assert str(Line("bound", node="n 1")) == 'bound node="n 1"'
    # Other libraries log plain texts with %-arguments.
    assert 'msg="it\'s 3 now"' in written("it's %d now", Format.LOGFMT, 3)


@pytest.mark.parametrize("style", Format)
@pytest.mark.parametrize("error", ["", HOSTILE])
def test_a_tenants_text_cannot_forge_a_line(style: Format, error: str) -> None:
    line = written(Line("refused", pod=HOSTILE), style, error=error)
    assert line.isascii() and line.isprintable()
    if style is Format.JSON:
        assert json.loads(line)["pod"] == HOSTILE
    else:
        pairs = dict(word.partition("=")[::2] for word in shlex.split(line))
        assert pairs["level"] == "info" and pairs["msg"] == "refused"
    assert ("traceback" in line) is bool(error)


@given(st.text(), st.sampled_from(Format))
def test_any_text_is_one_printable_line(text: str, style: Format) -> None:
    line = written(Line("said", text=text), style)
    assert line.isascii() and line.isprintable()
    assert logs.printable(text).isascii() and logs.printable(text).isprintable()
    assert logs.printable('a "b" c\\d\n\u202e') == 'a "b" c\\d\\n\\u202e'


def test_a_value_is_capped() -> None:
    said = json.loads(written(Line("said", text="x" * 5000), Format.JSON))
    assert said["text"] == "x" * logs.VALUE_CHARS_MAX + "..."
    most = logs.TRACEBACK_CHARS_MAX
    line = written(Line("failed"), Format.LOGFMT, error="x" * 2 * most)
    assert "traceback" in line and len(line) < 2 * most
