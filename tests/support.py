"""Helpers of tests in several areas: the checkout's path, sizes, waiting."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
_DEADLINE_S: Final = 120.0
_POLL_S: Final = 0.02


def until(condition: Callable[[], object], what: str, within_s: float = _DEADLINE_S) -> None:
    """Poll until it is true, for asynchronous effects on a machine that may be slow."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {within_s:.0f} s: {what}"
        time.sleep(_POLL_S)
