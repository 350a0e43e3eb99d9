"""Progress of timed steps. Standard library only: setup runs it first.

A terminal gets one line per step that is updated while the step runs; a log gets a line when the
step takes long, and one at its end.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TextIO


def duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 min 07 s`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"


class Step:
    """One step under way; `note` sets its current activity, `result` the text of its closing line.

    `failed` marks it as failed without an exception.
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
    """A step reported on stderr."""
    return Step(title, sys.stderr)
