"""Waiting for what the control plane does by itself, on a machine that may be slow."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_DEADLINE_S: Final = 120.0


def until(condition: Callable[[], bool], what: str, within_s: float = _DEADLINE_S) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s:.0f} s: {what}"
        time.sleep(0.1)
