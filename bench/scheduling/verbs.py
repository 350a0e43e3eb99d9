"""The verbs over HTTP, as kube-scheduler sends them: filter, prioritize, and bind in parallel with
the next pod's filter. The extender has a core to itself and calls no API server.

kube-scheduler collects its candidates from goroutines, so their order differs with each call; the
benchmark reproduces that.
"""

from __future__ import annotations

import json
import os
import queue
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any, Final

from bench.scheduling.caller import Caller, pod
from bench.scheduling.figures import Round, calibration_ms, cpu_s
from bench.scheduling.fleets import ONE, Mix, Size

VERBS: Final = ("filter", "prioritize", "bind")
_CHUNKS: Final = 32
"""Candidates within a goroutine's chunk are in order."""


@dataclass(frozen=True, slots=True)
class PodCalls:
    """A pod's calls, ready to be sent. The nodes of prioritize and bind come from the answers.
    fits: the pod has a feasible node."""

    namespace: str
    name: str
    uid: str
    pod: bytes
    filter: bytes
    fits: bool = True

    @classmethod
    def of(cls, pod: Mapping[str, Any], names: bytes, fits: bool = True) -> PodCalls:
        """names: of the candidates, as JSON."""
        metadata, text = pod["metadata"], json.dumps(pod, separators=(",", ":")).encode()
        namespace, name, uid = (str(metadata[key]) for key in ("namespace", "name", "uid"))
        return cls(namespace, name, uid, text, _arguments(text, names), fits)


@dataclass
class RoundResult:
    """The results of a round. pods_per_s: bound per second of elapsed time, with binds in parallel.
    per_core_s: bound per second of the extender's core. again: pods whose bind was refused because
    another had filled the GPU. alone_s: by verb, one call after the other."""

    pods_per_s: float
    per_core_s: Round
    again: int
    alone_s: Mapping[str, Sequence[float]]


@dataclass
class Measured:
    rounds: list[RoundResult] = field(default_factory=list)

    @property
    def pods_per_s(self) -> float:
        return median(each.pods_per_s for each in self.rounds)

    @property
    def per_core_s(self) -> Sequence[Round]:
        return [each.per_core_s for each in self.rounds]

    @property
    def again(self) -> int:
        return sum(each.again for each in self.rounds)

    def milliseconds(self, verb: str) -> tuple[float, float]:
        """p50 and p99 of all rounds."""
        taken = [taken for each in self.rounds for taken in each.alone_s[verb]]
        return median(taken) * 1e3, quantiles(taken, n=100)[98] * 1e3


def measure(size: Size, rounds: int, pods: int, mix: Mix = ONE) -> Measured:
    """pods: of each round, half of them one call after the other."""
    measured = Measured()
    with other_side(size) as (pid, port):
        first = 0
        for number in range(rounds + 1):
            ready = list(_ready(size, first, pods, mix))
            first += pods
            taken = _round(pid, port, ready)
            if number:  # the first is the warm-up
                measured.rounds.append(taken)
    return measured


def _round(pid: int, port: int, ready: Sequence[PodCalls]) -> RoundResult:
    half = len(ready) // 2
    alone: dict[str, list[float]] = defaultdict(list)
    with closing(Caller(port)) as caller:
        for each in filter(lambda each: each.fits, ready[:half]):
            node, taken = choose(caller, each)
            for verb, seconds in taken.items():
                alone[verb].append(seconds)
            alone["bind"].append(bind(caller, each, node)[1])
    before_ms = calibrated(_ITS_CORE)
    begun_s, had_s = time.perf_counter(), cpu_s(pid)
    again = drive(port, ready[half:], 1)
    took_s = time.perf_counter() - begun_s
    count = sum(each.fits for each in ready[half:])
    per_core_s = count / (cpu_s(pid) - had_s)
    in_a_round = Round(per_core_s, before_ms, calibrated(_ITS_CORE))
    return RoundResult(count / took_s, in_a_round, again, alone)


def drive(port: int, ready: Sequence[PodCalls], binders: int) -> int:
    """Calls the verbs pod after pod, with that many binds in parallel. Returns the number of
    retried binds."""
    again: list[str] = []
    chosen: queue.SimpleQueue[tuple[PodCalls, str] | None] = queue.SimpleQueue()

    def bind_all() -> None:
        with closing(Caller(port)) as binder:
            while (each := chosen.get()) is not None:
                asked, node = each
                while not bind(binder, asked, node)[0]:
                    again.append(asked.name)
                    node, _ = choose(binder, asked)

    with closing(Caller(port)) as caller, ThreadPoolExecutor(binders) as pool:
        running = [pool.submit(bind_all) for _ in range(binders)]
        try:
            for each in ready:
                if each.fits:
                    chosen.put((each, choose(caller, each)[0]))
                else:
                    refused(caller, each)
        finally:
            for _ in running:
                chosen.put(None)
        for binder in running:
            binder.result()
    return len(again)


def calibrated(core: int) -> float:
    with on_core(core):
        return calibration_ms()


def choose(caller: Caller, asked: PodCalls) -> tuple[str, Mapping[str, float]]:
    """The node that kube-scheduler would choose: the first with the highest score."""
    found, filter_s = caller.call("filter", asked.filter)
    names = found.get("NodeNames")
    if not names:
        raise RuntimeError(f"{asked.name} fits nowhere: {str(found)[:300]}")
    body = _arguments(asked.pod, json.dumps(names, separators=(",", ":")).encode())
    scores, prioritize_s = caller.call("prioritize", body)
    node = max(scores, key=lambda each: each["Score"])["Host"]
    return node, {"filter": filter_s, "prioritize": prioritize_s}


def refused(caller: Caller, asked: PodCalls) -> None:
    """A pod that fits nowhere is tried once: kube-scheduler then keeps it in its queue."""
    found, _ = caller.call("filter", asked.filter)
    if found.get("NodeNames") or found.get("Error"):
        raise RuntimeError(f"{asked.name} should fit nowhere: {str(found)[:300]}")


def bind(caller: Caller, asked: PodCalls, node: str) -> tuple[bool, float]:
    """Whether the node still had capacity, and the seconds."""
    said = {
        "PodName": asked.name,
        "PodNamespace": asked.namespace,
        "PodUID": asked.uid,
        "Node": node,
    }
    answer, taken_s = caller.call("bind", json.dumps(said).encode())
    return not answer.get("Error"), taken_s


def _ready(size: Size, first: int, count: int, mix: Mix) -> Iterator[PodCalls]:
    listed = orders(size.shape.node_names(), random.Random(first))
    for number, names in zip(range(first, first + count), listed, strict=False):
        yield PodCalls.of(pod(number, mix.asked(number)), names, mix.fits(number))


def orders(names: Sequence[str], chance: random.Random) -> Iterator[bytes]:
    """The names for one pod after the other, as JSON."""
    step = max(1, len(names) // _CHUNKS)
    chunks = [names[at : at + step] for at in range(0, len(names), step)]
    while True:
        chance.shuffle(chunks)
        listed = [name for chunk in chunks for name in chunk]
        yield json.dumps(listed, separators=(",", ":")).encode()


def _arguments(pod_text: bytes, names: bytes) -> bytes:
    return b'{"Pod":%b,"Nodes":null,"NodeNames":%b}' % (pod_text, names)


# --- the two sides, each on its own core ---------------------------------------------------------

_CORES: Final = sorted(os.sched_getaffinity(0))
_ITS_CORE: Final = _CORES[0]
_OUR_CORE: Final = _CORES[-1]


@contextmanager
def other_side(size: Size) -> Iterator[tuple[int, int]]:
    """The extender's process id and port."""
    sizes = (str(size.nodes), str(size.pods))
    command = [sys.executable, "-m", "bench.scheduling.extender_alone", *sizes]
    with on_core(_ITS_CORE):
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        if not said:
            raise RuntimeError("the extender of the bench does not come up; see above")
        with on_core(_OUR_CORE):
            yield process.pid, int(said)
    finally:
        process.kill()
        process.communicate()


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Binds this thread, and what it starts, to the core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
