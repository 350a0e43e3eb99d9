"""Machine-readable log lines: one record per line, in logfmt or JSON.

The commands of the scheduler and of the node agent install `Formatter`. All modules log `Line`s.
Values may contain a tenant's text (names, annotations, content of an image). Every value is
therefore truncated and printed in ASCII, so that no line break, terminal code or right-to-left
mark from a tenant reaches the log.
"""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

VALUE_CHARS_MAX: Final = 1000
TRACEBACK_CHARS_MAX: Final = 8000
"""Maximum length of a traceback. Its beginning is cut off, because its end contains the error."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9_./:@%+,\[\]-]+")
_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e]")


class Format(StrEnum):
    """The format of lines. The values are those of the command line's option."""

    LOGFMT = "logfmt"
    JSON = "json"


class Line:
    """A message with fields: `Line("synchronized", containers=3)`. A field of None is omitted."""

    def __init__(self, text: str, /, **fields: object) -> None:
        self.text = text
        self.fields = {key: value for key, value in fields.items() if value is not None}

    def __str__(self) -> str:
        return " ".join((self.text, *(f"{k}={_word(v)}" for k, v in self.fields.items())))


class Formatter(logging.Formatter):
    """Formats a record as one line: time (UTC), level, logger, msg, then the fields of `Line`."""

    def __init__(self, style: Format) -> None:
        super().__init__()
        self._format = style

    def format(self, record: logging.LogRecord) -> str:
        line = record.msg if isinstance(record.msg, Line) else Line(record.getMessage())
        at = datetime.fromtimestamp(record.created, UTC)
        values: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": line.text,
            **line.fields,
        }
        traceback = self.formatException(record.exc_info) if record.exc_info else None
        if self._format is Format.JSON:
            whole = {key: _value(value) for key, value in values.items()}
            if traceback is not None:
                whole["traceback"] = traceback[-TRACEBACK_CHARS_MAX:]
            return json.dumps(whole).replace("\x7f", "\\u007f")
        words = [f"{key}={_word(value)}" for key, value in values.items()]
        if traceback is not None:
            words.append(f"traceback={_quoted(traceback[-TRACEBACK_CHARS_MAX:])}")
        return " ".join(words)


def printable(text: str) -> str:
    """Return `text` in printable ASCII; other characters become Python escapes."""
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _value(value: object) -> object:
    """Return the JSON value: numbers and booleans unchanged, anything else as truncated text."""
    if isinstance(value, bool | int | float):
        return value
    text = str(value)
    return text if len(text) <= VALUE_CHARS_MAX else text[:VALUE_CHARS_MAX] + "..."


def _word(value: object) -> str:
    value = _value(value)
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if _PLAIN.fullmatch(text) else _quoted(text)


def _quoted(text: str) -> str:
    return json.dumps(text).replace("\x7f", "\\u007f")
