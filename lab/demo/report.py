"""The demo's output: each check is printed with its result, and counted. Independent of pods and
GPUs.

The output has 80 columns and no colours if it is not a terminal, as in docs/examples/demo.md.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TextIO

from rich.console import Console
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tools.progress import duration

_BAR_CELLS: Final = 40
_FILLS: Final = (("█", "green"), ("▓", "yellow"), ("▒", "magenta"))

Bars = Sequence[tuple[str, float, str]]
"""Each bar's name, filled fraction (0 to 1) and note."""


def folded(text: str) -> str:
    """Return the text in indented lines of at most 76 columns, broken after commas."""
    lines = [""]
    for part in re.findall(r"[^,]+,?", text):
        if lines[-1] and len(lines[-1] + part) > 76:
            lines.append("")
        lines[-1] += part
    return "\n  ".join(lines)


def _drawn(bars: Bars) -> Text:
    width = max(len(name) for name, _, _ in bars)
    lines = []
    for (name, fraction, note), (fill, style) in zip(bars, _FILLS, strict=False):
        cells = round(min(fraction, 1) * _BAR_CELLS)
        rest = ("░" * (_BAR_CELLS - cells), "dim")
        bar = (f"  {name.ljust(width)}  ", (fill * cells, style), rest, (f"  ({note})", "dim"))
        lines.append(Text.assemble(*bar))
    return Text("\n").join(lines)


class Report:
    """A console, and the results of its checks."""

    def __init__(self, out: TextIO) -> None:
        width = None if out.isatty() else 80
        self._console = Console(file=out, width=width, highlight=False, emoji=False)
        self._begun = time.monotonic()
        self.passed = 0
        self.failed: list[str] = []

    def title(self, text: str, under: str) -> None:
        self._console.print(Text(text, style="bold"))
        self._console.print(Text(under, style="dim"))

    def chapter(self, text: str) -> None:
        self._console.print()
        self._console.print(Text(text, style="bold cyan"))

    def text(self, text: str, style: str = "", indent: int = 2) -> None:
        self._console.print(Padding(Text(text, style=style), (0, 0, 0, indent)))

    @contextmanager
    def doing(self, text: str) -> Iterator[None]:
        """Show a step while it runs, then print it with its duration."""
        begun = time.monotonic()
        with self._console.status(f"{text} …"):
            yield
        self._done(text, begun)

    @contextmanager
    def watching(self, text: str) -> Iterator[Callable[[Bars], None]]:
        """Show a step while it runs, with bars on a terminal. Then print it with its duration."""
        begun = time.monotonic()
        if not self._console.is_terminal:
            yield lambda bars: None
        else:
            with Live(Text(f"  {text} …"), console=self._console, transient=True) as live:
                yield lambda bars: live.update(
                    Text.assemble("  ", text, " …\n", _drawn(bars), no_wrap=True)
                )
        self._done(text, begun)

    def bars(self, bars: Bars) -> None:
        self._console.print(_drawn(bars))

    def _done(self, text: str, begun: float) -> None:
        took = duration(time.monotonic() - begun)
        self._console.print(Text.assemble("  ", text, (f"  ({took})", "dim")))

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Show a long operation that prints its own progress."""
        with self._console.status(f"{text} …"):
            yield

    def check(self, text: str, true: bool, otherwise: object = "") -> None:
        """Print the check with ✓ if `true`, else ✗ and the actual value."""
        if true:
            self.passed += 1
            self._console.print(Text.assemble(("  ✓ ", "bold green"), text))
            return
        self.failed.append(text)
        self._console.print(Text.assemble(("  ✗ ", "bold red"), text, f"\n    found: {otherwise}"))

    def table(self, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
        for index, head in enumerate(heads):
            table.add_column(head, justify="right" if index else "left")
        for row in rows:
            table.add_row(*row)
        self._console.print(Padding(table, (0, 0, 0, 2)))

    def gpu(self, parts: Sequence[tuple[str, float]], note: str) -> None:
        """Print one GPU as a bar. parts: each holder's name and fraction; the rest is free."""
        bar = Text("  ")
        for (name, fraction), (fill, style) in zip(parts, _FILLS, strict=False):
            cells = round(fraction * _BAR_CELLS)
            bar.append(f" {name} ".center(cells, fill), style=style)
        used = sum(round(fraction * _BAR_CELLS) for _, fraction in parts)
        bar.append("░" * (_BAR_CELLS - used), style="dim")
        bar.append(f"  {note}", style="dim")
        self._console.print(bar)

    def quote(self, text: str) -> None:
        self._console.print(Padding(Panel(Text(text), border_style="dim"), (0, 0, 0, 2)))

    def end(self) -> int:
        """Print the tally; return the exit status."""
        self._console.print()
        if self.failed or not self.passed:
            self._console.print(Text(f"failed checks: {len(self.failed)}", style="bold red"))
            for text in self.failed:
                self._console.print(f"  ✗ {text}")
            return 1
        took = duration(time.monotonic() - self._begun)
        self._console.print(Text(f"{self.passed} checks, all passed.  ({took})", "bold"))
        return 0
