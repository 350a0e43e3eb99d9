"""The scheduler: throughput of kube-scheduler with the extender, without it and with its default
profile; writes to the API server; the verbs over HTTP; and memory.

The goals are for an idle machine of two cores, and for figures as measured. The calibration loop
before and after each round reports the machine's speed and corrects nothing.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Final

import psutil

from bench import Result
from bench.scheduling import blocking, fleets, say, stage, verbs
from bench.scheduling.throughput import (
    BARE,
    BINDING,
    CONDITION,
    EVENT,
    OURS,
    OURS_TENTH,
    OURS_WIDE,
    OURS_ZONE,
    STOCK,
    Runs,
    Throughput,
)
from lab.cluster import manifests
from lab.cluster.api import connected
from lab.cluster.controlplane import ControlPlane
from lab.cluster.installation import Installation

_AT_LEAST_OF_BARE: Final = {1_000: 0.75, 5_000: 0.9}
_MIXED: Final = (OURS, OURS_TENTH, OURS_ZONE)
_BLOCKING_MS: Final = 50.0
_MIXES: Final = {"": fleets.ONE, "_tenth": fleets.TENTH, "_wide": fleets.WIDE}
_MIB: Final = 1 << 20
_FIRST: Final = (STOCK, BARE, OURS, OURS_TENTH, OURS_ZONE, OURS_WIDE)
_LATER: Final = (STOCK, BARE, OURS, OURS_ZONE) * 3 + (OURS_TENTH,) * 2
"""With more nodes, which are empty."""


def run(quick: bool) -> Result:
    figures = Result(("", "measured", "goal"))
    _blocking(figures, fleets.LARGE)
    with tempfile.TemporaryDirectory(prefix="gpuslice-bench-") as directory:
        asyncio.run(_complete_runs(figures, Path(directory) / "plane", quick))
    _verbs(figures, quick)
    goals = figures.goals
    for name, value in figures.figures.items():
        if "_round_" in name:  # the table has their least and most
            continue
        shown = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        figures.rows.append((name, shown, goals.get(name, "")))
    return figures


def _blocking(figures: Result, size: fleets.Size) -> None:
    """The longest blocking of the event loop by each call, and the latest timer, as of a Lease's
    renewal."""
    say(f"{size.nodes:,} nodes, {blocking.PODS} hard pods wait")
    measured = blocking.measure(size)
    for kind, seconds in {**measured.longest_s, "timer": measured.late_s}.items():
        figures.add(f"blocking_{size.nodes}_{kind}_ms", seconds * 1e3, _BLOCKING_MS)


async def _complete_runs(figures: Result, directory: Path, quick: bool) -> None:
    """On a real control plane: 1,000 nodes with 40,000 pods, then 4,000 more nodes. The directory
    is created, and removed at the end."""
    there = fleets.Size(200, 2_000) if quick else fleets.MIDDLE
    stages = [there.nodes] if quick else [fleets.MIDDLE.nodes, fleets.LARGE.nodes]
    nodes = fleets.Size(stages[-1], 0).shape.all_nodes()
    with ControlPlane(directory) as plane:
        plane.install_kinds()
        plane.apply_json(*manifests.objects(*stage.BEFORE_PODS))
        installation = Installation(plane, manifests.configuration(), module=stage.PROGRAM)
        async with connected(plane.kubeconfig()) as kube:
            await stage.build(kube, nodes[: there.nodes])
            await stage.fill(kube, there)
            plane.apply_json(*manifests.in_force(manifests.objects(*stage.AFTER_PODS)))
            begun_s = time.monotonic()
            installation.start_extender()
            try:
                installation.wait_ready()
                say(f"the extender is ready after {time.monotonic() - begun_s:.1f} s")
                throughput = Throughput(plane, kube, installation)
                made = there.nodes
                for number in stages:
                    await stage.build(kube, nodes[made:number])
                    made = number
                    say(f"kube-scheduler with us and without, {number:,} nodes")
                    rounds, count = (1, 100) if quick else (3, 600)
                    kinds = _FIRST * rounds if number == stages[0] else _LATER
                    _runs(figures, number, await throughput.measure(count, kinds))
                say(f"memory of the extender: {made:,} nodes, {there.pods:,} pods")
                memory = psutil.Process(installation.extender.pid).memory_info()
                figures.add("memory_mib", memory.rss / _MIB, at_most=250.0)
            finally:
                installation.stop()


def _runs(figures: Result, nodes: int, runs: Runs) -> None:
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
    figures.add(f"real_{nodes}_pods_per_core_s", 1e6 / median(runs.cpu_us))
    for kind in _MIXED:
        if kind in runs.writes:
            _writes(figures, nodes, kind, runs)


def _writes(figures: Result, nodes: int, kind: str, runs: Runs) -> None:
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


def _verbs(figures: Result, quick: bool) -> None:
    """Few pods on the small fleet, or it would be full. again: binds for which another pod's had
    filled the GPU."""
    for size, pods in ((fleets.SMALL, 200), (fleets.MIDDLE, 400), (fleets.LARGE, 400)):
        for suffix, mix in _MIXES.items():
            if mix is not fleets.ONE and size is not fleets.MIDDLE:
                continue
            say(f"{size.nodes:,} nodes, verbs alone, {mix.about}")
            rounds, count = (2, pods // 4) if quick else (5, pods)
            measured = verbs.measure(size, rounds, count, mix)
            name = f"{size.nodes}{suffix}"
            goal = 1_000.0 if size is fleets.MIDDLE and mix is fleets.ONE else None
            per_core = f"verbs_{name}_pods_per_core_s"
            figures.add(per_core, median(measured.per_core_s), at_least=goal)
            for number, value in enumerate(measured.per_core_s):
                name_of_round = f"{per_core}_round_{number + 1}"
                before_s, after_s = measured.calibration_s[2 * number : 2 * number + 2]
                figures.add(name_of_round, value)
                figures.add(f"{name_of_round}_before_ms", before_s * 1e3)
                figures.add(f"{name_of_round}_after_ms", after_s * 1e3)
            figures.add(f"{per_core}_least", min(measured.per_core_s))
            figures.add(f"{per_core}_most", max(measured.per_core_s))
            figures.add(f"verbs_{name}_calibration_least_ms", min(measured.calibration_s) * 1e3)
            figures.add(f"verbs_{name}_calibration_most_ms", max(measured.calibration_s) * 1e3)
            figures.add(f"verbs_{name}_pods_per_s", median(measured.pods_per_s))
            figures.add(f"verbs_{name}_again", measured.again)
            for verb in verbs.VERBS:
                p50_ms, p99_ms = measured.milliseconds(verb)
                figures.add(f"{verb}_{name}_p50_ms", p50_ms)
                figures.add(f"{verb}_{name}_p99_ms", p99_ms)
