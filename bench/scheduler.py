"""The scheduler: its core beside a plain loop, its verbs over HTTP, kube-scheduler with it and
without, what it writes, and its memory.

The goals are for a quiet machine. Every figure of time stands beside others of the same run.
"""

from __future__ import annotations

from bench import Result
from bench.scheduling import core, fleets
from bench.scheduling.figures import Figures, say


def run(quick: bool) -> Result:
    figures = Figures()
    _core(figures, quick)
    header = ("", "unit", "measured", "goal")
    return Result(figures.values, figures.at_most, header, figures.rows, figures.at_least)


def _core(figures: Figures, quick: bool) -> None:
    for size in (fleets.SMALL, fleets.MIDDLE, fleets.LARGE):
        say(f"the core beside a plain loop, {size.nodes} nodes")
        ours_us, loop_us = core.measure(fleets.filled(size).fleet, 5 if quick else 25)
        where = f"{size.nodes:,} nodes"
        figures.add(f"core_{size.nodes}_us", f"{where}: a card for a pod, columns", "us", ours_us)
        figures.add(f"loop_{size.nodes}_us", f"{where}: the same, plain loop", "us", loop_us)
        figures.add(
            f"core_per_loop_{size.nodes}",
            f"{where}: times the plain loop",
            "x",
            loop_us / ours_us,
            at_least=50.0 if size is fleets.MIDDLE else None,
        )
