"""The scheduler: its core beside a plain loop, its verbs over HTTP, kube-scheduler with it and
without, what it writes, and its memory.

The goals are for a quiet machine of two cores. Every figure of time stands beside others of the
same run, and beside the calibration loop.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from statistics import median
from typing import Final

from bench import Result
from bench.scheduling import core, driven, fleets, verbs, whole
from bench.scheduling.figures import REFERENCE_MS, Figures, say
from bench.scheduling.throughput import BARE, BINDING, EVENT, OURS, PLAIN, Runs

_AT_LEAST_OF_BARE: Final = {1_000: 0.75, 5_000: 0.9}


def run(quick: bool) -> Result:
    figures = Figures()
    _core(figures, quick)
    _verbs(figures, quick)
    _whole(figures, quick)
    header = ("", "unit", "measured", "goal")
    return Result(figures.values, figures.at_most, header, figures.rows, figures.at_least)


def _core(figures: Figures, quick: bool) -> None:
    for size in (fleets.SMALL, fleets.MIDDLE, fleets.LARGE):
        say(f"the core beside a plain loop, {size.nodes:,} nodes")
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


def _verbs(figures: Figures, quick: bool) -> None:
    """Few pods on the small fleet, or it would be full."""
    for size, pods in ((fleets.SMALL, 200), (fleets.MIDDLE, 400), (fleets.LARGE, 400)):
        say(f"the verbs over HTTP, {size.nodes:,} nodes, {size.pods:,} pods")
        measured = verbs.measure(size, 2 if quick else 5, pods // 4 if quick else pods)
        where = f"{size.nodes:,} nodes, verbs alone"
        is_goal = size is fleets.MIDDLE
        figures.add(
            f"verbs_{size.nodes}_pods_per_core_s",
            f"{where}: pods a second of one core",
            "1/s",
            1e6 / measured.cpu_us,
        )
        figures.add(
            f"verbs_{size.nodes}_at_reference",
            f"{where}: ... of one on which the calibration loop takes {REFERENCE_MS:.0f} ms",
            "1/s",
            measured.at_reference,
            at_least=1_000.0 if is_goal else None,
        )
        figures.add(
            f"verbs_{size.nodes}_pods_per_s",
            f"{where}: by the clock, binds beside the next pod's filter",
            "1/s",
            measured.pods_per_s,
        )
        figures.add(
            f"verbs_{size.nodes}_again",
            f"{where}: binds for which another's had filled the card",
            "",
            measured.again,
        )
        for verb in verbs.VERBS:
            p50_ms, p99_ms = measured.milliseconds(verb)
            figures.add(f"{verb}_{size.nodes}_p50_ms", f"{where}: {verb}, p50", "ms", p50_ms)
            figures.add(f"{verb}_{size.nodes}_p99_ms", f"{where}: {verb}, p99", "ms", p99_ms)
        figures.add(
            f"verbs_{size.nodes}_calibration_ms",
            f"{where}: calibration loop on that core",
            "ms",
            measured.calibration_ms,
        )


def _whole(figures: Figures, quick: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="gpuslice-bench-") as directory:
        measured = asyncio.run(whole.measure(Path(directory) / "plane", quick))
    for nodes, runs in measured.runs.items():
        _runs(figures, nodes, runs, measured.calibration_ms)
        _driven(figures, nodes, measured.driven[nodes])
    figures.add(
        "memory_mib",
        f"the extender's RSS, {measured.nodes:,} nodes, {measured.pods:,} pods",
        "MiB",
        measured.memory_mib,
        at_most=400.0,
    )


def _runs(figures: Figures, nodes: int, runs: Runs, calibration_ms: float) -> None:
    where = f"{nodes:,} nodes, kube-scheduler"
    for kind in (OURS, BARE, PLAIN):
        name = kind.replace(",", "").replace(" ", "_")
        rate = runs.median(kind)
        figures.add(f"whole_{nodes}_{name}_pods_per_s", f"{where} {kind}", "1/s", rate)
    figures.add(
        f"whole_{nodes}_ours_per_bare",
        f"{where} with us, of without",
        "x",
        runs.median(OURS) / runs.median(BARE),
        at_least=_AT_LEAST_OF_BARE.get(nodes),
    )
    figures.add(
        f"real_{nodes}_pods_per_core_s",
        f"{where} at its pace: the extender, pods a second of one core",
        "1/s",
        1e6 / runs.cpu_us_median,
    )
    figures.add(f"real_{nodes}_calibration_ms", f"{where}: calibration loop", "ms", calibration_ms)
    for name, what in (("bindings", BINDING), ("events", EVENT)):
        figures.add(
            f"writes_{nodes}_{name}",
            f"{where}: {what} per pod",
            "",
            runs.written(what),
            # A pod whose card was filled meanwhile is tried again, and told so.
            at_most=1.02,
            at_least=0.99,
        )
    figures.add(
        f"writes_{nodes}_others",
        f"{where}: other writes per pod ({', '.join(runs.other_writes) or 'none'})",
        "",
        sum(runs.other_writes.values()),
        at_most=0.05,
    )


def _driven(figures: Figures, nodes: int, measured: driven.Measured) -> None:
    where = f"{nodes:,} nodes, verbs with POST and watches"
    figures.add(
        f"driven_{nodes}_pods_per_core_s",
        f"{where}: pods a second of one core",
        "1/s",
        1e6 / measured.cpu_us_median,
    )
    figures.add(
        f"driven_{nodes}_at_reference",
        f"{where}: ... of one on which the calibration loop takes {REFERENCE_MS:.0f} ms",
        "1/s",
        measured.at_reference,
        at_least=500.0 if nodes == fleets.MIDDLE.nodes else None,
    )
    by_clock = median(measured.pods_per_s)
    figures.add(f"driven_{nodes}_pods_per_s", f"{where}: by the clock", "1/s", by_clock)
    figures.add(f"driven_{nodes}_again", f"{where}: binds that came late", "", measured.again)
    calibration_ms = measured.calibration_ms
    about = f"{where}: calibration loop on that core"
    figures.add(f"driven_{nodes}_calibration_ms", about, "ms", calibration_ms)
