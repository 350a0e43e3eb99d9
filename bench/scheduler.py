"""The scheduler: throughput of kube-scheduler with the extender, without it and with its default
profile; writes to the API server; the verbs over HTTP; and memory.

The goals are for an idle machine of two cores, and for figures as measured. The calibration loop
before and after each round reports the machine's speed and corrects nothing.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from statistics import median
from typing import Final

from bench import Result
from bench.scheduling import blocking, complete_runs, fleets, verbs
from bench.scheduling.figures import Figures, say
from bench.scheduling.throughput import (
    BARE,
    BINDING,
    CONDITION,
    EVENT,
    OURS,
    OURS_TENTH,
    OURS_ZONE,
    STOCK,
    Runs,
)

_AT_LEAST_OF_BARE: Final = {1_000: 0.75, 5_000: 0.9}
_MIXED: Final = (OURS, OURS_TENTH, OURS_ZONE)
_BLOCKING_MS: Final = 50.0
_MIXES: Final = {"": fleets.ONE, "_tenth": fleets.TENTH, "_wide": fleets.WIDE}


def run(quick: bool) -> Result:
    figures = Figures()
    _blocking(figures, fleets.LARGE)
    _whole(figures, quick)
    _verbs(figures, quick)
    header = ("", "measured", "goal")
    return Result(figures.values, figures.at_most, header, figures.rows, figures.at_least)


def _blocking(figures: Figures, size: fleets.Size) -> None:
    """The longest blocking of the event loop by each call, and the latest timer, as of a Lease's
    renewal."""
    say(f"{size.nodes:,} nodes, {blocking.PODS} hard pods wait")
    measured = blocking.measure(size)
    for kind, seconds in {**measured.longest_s, "timer": measured.late_s}.items():
        figures.add(f"blocking_{size.nodes}_{kind}_ms", seconds * 1e3, _BLOCKING_MS)


def _whole(figures: Figures, quick: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="gpuslice-bench-") as directory:
        measured = asyncio.run(complete_runs.measure(Path(directory) / "plane", quick))
    for nodes, runs in measured.runs.items():
        _runs(figures, nodes, runs)
    say(f"memory of the extender: {measured.nodes:,} nodes, {measured.pods:,} pods")
    figures.add("memory_mib", measured.memory_mib, at_most=250.0)


def _runs(figures: Figures, nodes: int, runs: Runs) -> None:
    for kind in runs.pods_per_s:
        figures.add(f"whole_{nodes}_{_name(kind)}_pods_per_s", runs.median(kind))
    for other, goal in ((BARE, _AT_LEAST_OF_BARE.get(nodes)), (STOCK, None)):
        name = f"whole_{nodes}_{_name(OURS)}_per_{_name(other)}"
        figures.add(name, runs.median(OURS) / runs.median(other), None, goal)
    for kind in (STOCK, OURS):
        for program, by_run in runs.spent_ms[kind].items():
            name = f"spent_{nodes}_{_name(kind)}_{_name(program)}_ms_per_pod"
            figures.add(name, median(by_run))
        figures.add(f"idle_{nodes}_{_name(kind)}", median(runs.idle[kind]))
    figures.add(f"real_{nodes}_pods_per_core_s", 1e6 / runs.cpu_us_median)
    for kind in _MIXED:
        if kind in runs.writes:
            _writes(figures, nodes, kind, runs)


def _writes(figures: Figures, nodes: int, kind: str, runs: Runs) -> None:
    """kube-scheduler writes an event and a condition of each pod that does not fit, at every try.
    So it does of a pod whose GPU was filled meanwhile."""
    name = f"writes_{nodes}_{_name(kind)}"
    all_fit = kind != OURS_TENTH
    for short, what, at_least, at_most in (
        ("bindings", BINDING, 0.99, 1.02),
        ("events", EVENT, 0.99, 1.02 if all_fit else None),
        ("conditions", CONDITION, None, 0.02 if all_fit else None),
    ):
        figures.add(f"{name}_{short}", runs.written(kind, what), at_most, at_least)
    others = runs.other_writes(kind)
    say(f"{nodes:,} nodes, {kind}: other writes: {', '.join(others) or 'none'}")
    figures.add(f"{name}_others", sum(others.values()), at_most=0.05 if all_fit else None)


def _name(kind: str) -> str:
    return "_".join(kind.replace(",", "").replace("%", "percent").split())


def _verbs(figures: Figures, quick: bool) -> None:
    """Few pods on the small fleet, or it would be full."""
    for size, pods in ((fleets.SMALL, 200), (fleets.MIDDLE, 400), (fleets.LARGE, 400)):
        for suffix, mix in _MIXES.items():
            if mix is fleets.ONE or size is fleets.MIDDLE:
                count = pods // 4 if quick else pods
                _mix(figures, size, f"{size.nodes}{suffix}", mix, 2 if quick else 5, count)


def _mix(
    figures: Figures, size: fleets.Size, name: str, mix: fleets.Mix, rounds: int, pods: int
) -> None:
    """again: binds for which another pod's had filled the GPU."""
    say(f"{size.nodes:,} nodes, verbs alone, {mix.about}")
    measured = verbs.measure(size, rounds, pods, mix)
    goal = 1_000.0 if size is fleets.MIDDLE and mix is fleets.ONE else None
    figures.add_rounds(f"verbs_{name}_pods_per_core_s", measured.per_core_s, goal)
    figures.add(f"verbs_{name}_pods_per_s", measured.pods_per_s)
    figures.add(f"verbs_{name}_again", measured.again)
    for verb in verbs.VERBS:
        p50_ms, p99_ms = measured.milliseconds(verb)
        figures.add(f"{verb}_{name}_p50_ms", p50_ms)
        figures.add(f"{verb}_{name}_p99_ms", p99_ms)
