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
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any, Final

from bench.scheduling import cpu_s
from bench.scheduling.caller import Caller, pod
from bench.scheduling.fleets import ASKED, Size

VERBS: Final = ("filter", "prioritize", "bind")
_CHUNKS: Final = 32
"""Candidates within a goroutine's chunk are in order."""


@dataclass(frozen=True, slots=True)
class PodCalls:
    """A pod's calls, ready to be sent. The nodes of prioritize and bind come from the answers."""

    namespace: str
    name: str
    uid: str
    pod: bytes
    filter: bytes

    @classmethod
    def of(cls, pod: Mapping[str, Any], names: bytes) -> PodCalls:
        """names: of the candidates, as JSON."""
        metadata, text = pod["metadata"], json.dumps(pod, separators=(",", ":")).encode()
        namespace, name, uid = (str(metadata[key]) for key in ("namespace", "name", "uid"))
        return cls(namespace, name, uid, text, _arguments(text, names))


@dataclass
class Measured:
    """per_core_s: pods bound per second of the extender's core by round, binds in parallel.
    alone_s: by verb, one call after the other."""

    per_core_s: list[float] = field(default_factory=list)
    alone_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def milliseconds(self, verb: str) -> tuple[float, float]:
        """p50 and p99 of all rounds."""
        taken_s = self.alone_s[verb]
        return median(taken_s) * 1e3, quantiles(taken_s, n=100)[98] * 1e3


def measure(size: Size, rounds: int, pods: int) -> Measured:
    """pods: of each round, half of them one call after the other."""
    measured = Measured()
    with other_side(size) as (pid, port):
        for number in range(rounds + 1):
            ready = list(_ready(size, number * pods, pods))
            # The first is the warm-up.
            _round(pid, port, ready, measured if number else Measured())
    return measured


def _round(pid: int, port: int, ready: Sequence[PodCalls], into: Measured) -> None:
    half = len(ready) // 2
    with closing(Caller(port)) as caller:
        for each in ready[:half]:
            node, taken = choose(caller, each)
            for verb, seconds in taken.items():
                into.alone_s[verb].append(seconds)
            into.alone_s["bind"].append(bind(caller, each, node)[1])
    begun_s = cpu_s(pid)
    drive(port, ready[half:])
    into.per_core_s.append((len(ready) - half) / (cpu_s(pid) - begun_s))


def drive(port: int, ready: Sequence[PodCalls]) -> None:
    """Calls the verbs pod after pod; binds are in parallel with the next pod's. A bind is retried
    where another pod's had filled the GPU."""
    chosen: queue.SimpleQueue[tuple[PodCalls, str] | None] = queue.SimpleQueue()

    def bind_all() -> None:
        with closing(Caller(port)) as binder:
            while (each := chosen.get()) is not None:
                asked, node = each
                while not bind(binder, asked, node)[0]:
                    node, _ = choose(binder, asked)

    with closing(Caller(port)) as caller, ThreadPoolExecutor(1) as pool:
        binding = pool.submit(bind_all)
        try:
            for each in ready:
                chosen.put((each, choose(caller, each)[0]))
        finally:
            chosen.put(None)
        binding.result()


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


def bind(caller: Caller, asked: PodCalls, node: str) -> tuple[bool, float]:
    """Whether the node still had capacity, and the seconds."""
    said = {"PodName": asked.name, "PodNamespace": asked.namespace, "PodUID": asked.uid}
    said["Node"] = node
    answer, taken_s = caller.call("bind", json.dumps(said).encode())
    return not answer.get("Error"), taken_s


def _ready(size: Size, first: int, count: int) -> Iterator[PodCalls]:
    listed = orders(size.shape.node_names(), random.Random(first))
    for number, names in zip(range(first, first + count), listed, strict=False):
        yield PodCalls.of(pod(number, (ASKED,)), names)


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
