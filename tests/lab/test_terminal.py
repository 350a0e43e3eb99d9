"""A program at a pty: lines are typed when its prompt is there."""

from __future__ import annotations

import os

import pytest

from lab.demo.terminal import TerminalError, typed

_SHELL = ("bash", "--norc", "--noprofile", "-i")
_ENVIRON = {"PATH": os.environ["PATH"], "PS1": "here# ", "TERM": "dumb"}


def test_what_is_typed_is_shown_with_what_it_says() -> None:
    code, shown = typed(_SHELL, ["tty | cut -c1-9", "exit 3"], _ENVIRON, 60)
    assert code == 3
    assert shown.splitlines()[:2] == ["here# tty | cut -c1-9", "/dev/pts/"]


def test_a_program_that_ends_before_its_prompt_is_not_waited_for() -> None:
    code, shown = typed(["sh", "-c", "echo no; exit 5"], ["never"], _ENVIRON, 60)
    assert (code, shown) == (5, "no\n")


def test_a_program_that_shows_no_prompt_is_ended() -> None:
    with pytest.raises(TerminalError, match="nothing more is said after:\nbusy"):
        typed(["sh", "-c", "echo busy; exec sleep 1000"], ["never"], _ENVIRON, 1)
