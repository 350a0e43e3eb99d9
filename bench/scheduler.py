"""Measures the scheduler: throughput of kube-scheduler with and without the extender, writes to the
API server, the verbs over HTTP, and the extender's memory.

The goals are for an idle machine of two cores.
"""

from __future__ import annotations

import asyncio
import time
from statistics import median
from typing import Final

import psutil

from bench import Result
from bench.scheduling import blocking, fleets, say, stage, verbs
from bench.scheduling.throughput import BINDING, CONDITION, EVENT, OURS, STOCK, Runs, Throughput
from lab.cluster import manifests
from lab.cluster.api import connected
from lab.cluster.installation import Installation

_WRITES: Final = (
    ("bindings", BINDING, 0.99, 1.02),
    ("events", EVENT, 0.99, 1.02),
    ("conditions", CONDITION, 0.0, 0.02),
)
"""Kinds of writes: the name, the request, and the goals, least and most per pod. kube-scheduler
writes an Event and a condition at every try of a pod that does not fit."""


def run(quick: bool) -> Result:
    figures = Result(("", "measured", "goal"))
    _blocking(figures, fleets.LARGE)
    asyncio.run(_complete_runs(figures, quick))
    _verbs(figures, quick)
    goals = figures.goals
    for name, value in figures.figures.items():
        shown = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        figures.rows.append((name, shown, goals.get(name, "")))
    return figures


def _blocking(figures: Result, size: fleets.Size) -> None:
    """Measure how long each kind of call blocks the event loop at most, and how late a timer
    runs, such as the timer of a Lease's renewal."""
    say(f"{size.nodes:,} nodes, {blocking.PODS} hard pods wait")
    measured = blocking.measure(size)
    for kind, seconds in {**measured.longest_s, "timer": measured.late_s}.items():
        figures.add(f"blocking_{size.nodes}_{kind}_ms", seconds * 1e3, 50.0)


async def _complete_runs(figures: Result, quick: bool) -> None:
    """Measure with a real control plane: 1,000 nodes with 40,000 pods, then 4,000 more nodes."""
    there = fleets.Size(200, 2_000) if quick else fleets.MIDDLE
    stages = [there.nodes] if quick else [fleets.MIDDLE.nodes, fleets.LARGE.nodes]
    nodes = fleets.Size(stages[-1], 0).shape.all_nodes()
    with stage.control_plane() as plane:
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
                    rounds, count = (1, 100) if quick else (7, 3_000)
                    runs = await throughput.measure(count, (STOCK, OURS) * rounds)
                    _runs(figures, number, runs)
                say(f"memory of the extender: {made:,} nodes, {there.pods:,} pods")
                memory = psutil.Process(installation.extender.pid).memory_info()
                figures.add("memory_mib", memory.rss / (1 << 20), at_most=250.0)
            finally:
                installation.stop()


def _runs(figures: Result, nodes: int, runs: Runs) -> None:
    for kind in (STOCK, OURS):
        name = f"{nodes}_{kind.replace(' ', '_')}"
        say(f"{name}: {', '.join(f'{rate:.0f}' for rate in runs.pods_per_s[kind])} pods a second")
        figures.add(f"whole_{name}_pods_per_s", runs.median(kind))
        for program, by_run in runs.spent_ms[kind].items():
            figures.add(f"spent_{name}_{program.replace(' ', '_')}_ms_per_pod", median(by_run))
        figures.add(f"idle_{name}", median(runs.idle[kind]))
    ratio = runs.median(OURS) / runs.median(STOCK)
    figures.add(f"whole_{nodes}_with_us_per_stock", ratio, at_least=0.9)
    for short, what, at_least, at_most in _WRITES:
        figures.add(f"writes_{nodes}_{short}", runs.written(OURS, what), at_most, at_least)
    others = runs.other_writes(OURS)
    say(f"{nodes:,} nodes, other writes: {', '.join(others) or 'none'}")
    figures.add(f"writes_{nodes}_others", sum(others.values()), at_most=0.05)


def _verbs(figures: Result, quick: bool) -> None:
    for size in (fleets.MIDDLE, fleets.LARGE):
        say(f"{size.nodes:,} nodes, verbs alone")
        measured = verbs.measure(size, *((2, 100) if quick else (5, 400)))
        goal = 1_000.0 if size is fleets.MIDDLE else None
        figures.add(f"verbs_{size.nodes}_pods_per_core_s", median(measured.per_core_s), None, goal)
        for verb in verbs.VERBS:
            p50_ms, p99_ms = measured.milliseconds(verb)
            figures.add(f"{verb}_{size.nodes}_p50_ms", p50_ms)
            figures.add(f"{verb}_{size.nodes}_p99_ms", p99_ms)
