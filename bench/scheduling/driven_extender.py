"""The extender's throughput with POSTs and watches, driven without pauses, on one core.

kube-scheduler schedules some eighty pods a second here. Between two of them the extender's core is
idle or runs something else, and its caches are cold. So here the benchmark calls the verbs in
kube-scheduler's place, pod after pod, with binds in parallel; the API server and the pods are real.
The extender has a core to itself; all other processes share the rest.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import psutil

from bench.scheduling import fleets, stage
from bench.scheduling.caller import Caller
from bench.scheduling.figures import Round, cpu_s, say
from bench.scheduling.verbs import PodCalls, calibrated, drive, orders
from kube.client import Kube

_BINDERS: Final = 8
"""kube-scheduler runs binds in parallel with its other work."""
_ADMITTED_S: Final = 60.0


@dataclass
class Measured:
    """By round: pods per second of the extender's core, and pods per second of elapsed time. again:
    retried binds of all rounds."""

    per_core_s: list[Round] = field(default_factory=list)
    pods_per_s: list[float] = field(default_factory=list)
    again: int = 0


async def measure(
    kube: Kube, port: int, pid: int, nodes: Sequence[str], count: int, rounds: int
) -> Measured:
    """port, pid: the extender's. The first round is a warm-up and is not counted."""
    measured = Measured()
    with _a_core_of_its_own(pid) as core:
        for number in range(rounds + 1):
            path = await _pods(kube, f"driven-{len(nodes)}-{number}", count)
            found = await kube.get(path)
            ready = list(_ready(found["items"], nodes, number))
            before_ms = await asyncio.to_thread(calibrated, core)
            begun_s, had_s = time.monotonic(), cpu_s(pid)
            again = await asyncio.to_thread(_drive, port, ready)
            took_s = time.monotonic() - begun_s
            per_core_s = count / (cpu_s(pid) - had_s)
            after_ms = await asyncio.to_thread(calibrated, core)
            if number:
                measured.per_core_s.append(Round(per_core_s, before_ms, after_ms))
                measured.pods_per_s.append(count / took_s)
                measured.again += again
                say(f"asked by the bench: {count} pods, {count / took_s:.0f} a second")
            await kube.delete(path, {"gracePeriodSeconds": 0})
    return measured


async def _pods(kube: Kube, namespace: str, count: int) -> str:
    await kube.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
    path = f"/api/v1/namespaces/{namespace}/pods"
    await stage.post_all(
        kube, path, (stage.asking_pod(f"p{n}", fleets.ONE.percents) for n in range(count))
    )
    return path


def _ready(
    pods: Sequence[Mapping[str, Any]], nodes: Sequence[str], seed: int
) -> Iterator[PodCalls]:
    for pod, names in zip(pods, orders(nodes, random.Random(seed)), strict=False):
        yield PodCalls.of(pod, names)


def _drive(port: int, ready: Sequence[PodCalls]) -> int:
    """Returns the number of retried binds."""
    _until_admitted(port, ready[0])
    return drive(port, ready, _BINDERS)


def _until_admitted(port: int, asked: PodCalls) -> None:
    """The extender acquires the Lease only when it receives calls."""
    until_s = time.monotonic() + _ADMITTED_S
    with closing(Caller(port)) as caller:
        while caller.call("filter", asked.filter)[0].get("Error"):
            if time.monotonic() > until_s:
                raise RuntimeError(f"the extender takes no Lease within {_ADMITTED_S:.0f} s")
            time.sleep(0.1)


@contextmanager
def _a_core_of_its_own(pid: int) -> Iterator[int]:
    """Yields the core. This process and all that it has started move to the others."""
    me, cores = psutil.Process(), os.sched_getaffinity(0)
    core = max(cores)
    others = [me.pid, *(each.pid for each in me.children(recursive=True) if each.pid != pid)]
    _move([pid], {core})
    _move(others, cores - {core} or cores)
    try:
        yield core
    finally:
        _move([pid, *others], cores)


def _move(pids: Sequence[int], cores: set[int]) -> None:
    """All threads, and so those that they start."""
    for pid in pids:
        try:
            for thread in psutil.Process(pid).threads():
                os.sched_setaffinity(thread.id, cores)
        except (psutil.NoSuchProcess, ProcessLookupError):
            continue  # it has exited meanwhile
