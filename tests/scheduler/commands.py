"""Runs `python -m scheduler` in this process."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from unittest import mock

from scheduler.command_line import main


@dataclass(frozen=True)
class Done:
    exit_code: int | str | None
    stdout: str
    stderr: str


def run(*arguments: str, environment: Mapping[str, str] | None = None, given: str = "") -> Done:
    out, err = io.StringIO(), io.StringIO()
    stdin = io.TextIOWrapper(io.BytesIO(given.encode()))
    status: int | str | None
    with redirect_stdout(out), redirect_stderr(err), mock.patch.object(sys, "stdin", stdin):
        try:
            status = main(arguments, environment or {})
        except SystemExit as ended:
            status = ended.code
    return Done(status, out.getvalue(), err.getvalue())
