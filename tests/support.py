"""Helpers of tests in several areas: the checkout, sizes, waiting, measurements, a table, imports,
clocks."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, ParamSpec

ROOT: Final = Path(__file__).resolve().parent.parent
MIB: Final = 1 << 20
GIB: Final = 1 << 30
_DEADLINE_S: Final = 120.0
_POLL_S: Final = 0.02
_LONGEST_POLL_S: Final = 0.5
_TRIES: Final = 3
_P = ParamSpec("_P")


def until(condition: Callable[[], object], what: str, within_s: float = _DEADLINE_S) -> None:
    """Poll until it is true, for asynchronous effects on a machine that may be slow. A condition
    that runs a program, as kubectl, leaves the processors to others for most of the time."""
    began_s = asked_s = time.monotonic()
    while not condition():
        now_s = time.monotonic()
        assert now_s < began_s + within_s, f"not within {within_s:.0f} s: {what}"
        time.sleep(min(max(_POLL_S, 4 * (now_s - asked_s)), _LONGEST_POLL_S))
        asked_s = time.monotonic()


async def until_async(condition: Callable[[], object]) -> None:
    """The same in an event loop."""
    async with asyncio.timeout(_DEADLINE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S / 2)


def table_below(text: str, heading: str) -> list[list[str]]:
    """The rows of a document's table below a heading, as cells."""
    lines = text[text.index(f"| {heading} |") :].splitlines()
    rows = []
    for line in lines[2:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def imported(source: bytes) -> set[str]:
    """Top-level names of the modules that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {each.name.split(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def measured(test: Callable[_P, None]) -> Callable[_P, None]:
    """A test that measures a share, a pace or a delay in real time. It has three tries: what one
    stall of the machine adds is in one of them, what the code adds is in each."""

    @functools.wraps(test)
    def tried(*args: _P.args, **kwargs: _P.kwargs) -> None:
        for _ in range(_TRIES - 1):
            with contextlib.suppress(AssertionError):
                return test(*args, **kwargs)
        return test(*args, **kwargs)

    return tried


def jump(seconds: float) -> None:
    """Advance the running event loop's clock: its timers up to then are due at once."""
    loop = asyncio.get_running_loop()
    clock = loop.time
    loop.time = lambda: clock() + seconds  # type: ignore[method-assign]


class Clock:
    """A clock that a test sets."""

    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds
