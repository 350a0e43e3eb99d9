"""Shows the progress of timed steps. It uses only the standard library, because setup runs it.

A terminal gets one line per step, which is updated while the step runs. A log gets a line at the
end of each step, and every 15 s while the step runs.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TextIO


def duration(seconds: float) -> str:
    """Return the duration as a text like `0.4 s`, `12 s` or `3 min 07 s`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"


class Step:
    """A running step. note: a text on its current activity. result: a text for its last line.

    failed: whether to show it as failed, although it raised no exception.
    """

    def __init__(self, title: str, out: TextIO) -> None:
        self.title = title
        self.note = ""
        self.result = ""
        self.failed = False
        self._out = out
        self._begun = time.monotonic()
        self._live = out.isatty()
        self._printed_at = self._begun
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Step:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._done.set()
        self._thread.join()
        mark = "✗" if kind or self.failed else "✓"
        tail = f"  {self.result}" if self.result else ""
        self._write(f"{mark} {self.title}{tail}  ({duration(self._elapsed())})\n")

    def _elapsed(self) -> float:
        return time.monotonic() - self._begun

    def _tick(self) -> None:
        while not self._done.wait(0.2):
            now = time.monotonic()
            if self._live:
                self._write(f"… {self.title}  {duration(self._elapsed())}  {self.note[:60]}")
            elif now - self._printed_at >= 15.0:
                self._printed_at = now
                self._write(f"… {self.title}  {duration(self._elapsed())}  {self.note}\n")

    def _write(self, text: str) -> None:
        self._out.write(f"\r\x1b[K{text}" if self._live else text)
        self._out.flush()


def step(title: str) -> Step:
    """Return a step that is shown on standard error."""
    return Step(title, sys.stderr)
