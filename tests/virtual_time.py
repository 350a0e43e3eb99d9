"""An event loop with virtual time. Its clock jumps to the next timer, so waiting takes no time.

It is for tests without sockets, which import `loop_factory`. `now` returns the loop's time.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

import pytest


class _Jumps(selectors.DefaultSelector):
    """A selector that advances the clock instead of waiting."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "every task waits, and no timer is set"
        self.now_s += timeout
        return super().select(0)


class Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumps = _Jumps()
        super().__init__(self._jumps)

    def time(self) -> float:
        return self._jumps.now_s


@pytest.fixture(autouse=True)
def loop_factory() -> type[Loop]:
    return Loop


def now() -> float:
    return asyncio.get_running_loop().time()
