"""Measures the verbs over HTTP. Like kube-scheduler, it calls filter, prioritize, and then bind in
parallel with the next pod's filter. The extender has its own core and calls no API server.

kube-scheduler collects the candidates from goroutines, so their order differs in each call. The
benchmark shuffles them likewise.
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
from scheduler.decisions.sampling import sample_size

VERBS: Final = ("filter", "prioritize", "bind")
_CHUNKS: Final = 32
"""The number of goroutines. The candidates of one goroutine stay in order."""


@dataclass(frozen=True, slots=True)
class PodCalls:
    """A pod's prepared calls. The nodes of prioritize and bind come from the answers."""

    namespace: str
    name: str
    uid: str
    pod: bytes
    filter: bytes

    @classmethod
    def of(cls, pod: Mapping[str, Any], names: bytes) -> PodCalls:
        """Prepare the pod's calls. names: the candidates' names, as JSON."""
        metadata, text = pod["metadata"], json.dumps(pod, separators=(",", ":")).encode()
        namespace, name, uid = (str(metadata[key]) for key in ("namespace", "name", "uid"))
        return cls(namespace, name, uid, text, _arguments(text, names))


@dataclass
class Measured:
    """The measured times. per_core_s: for each round, pods bound per second of the extender's
    processor time, with parallel binds. alone_s: each call's time by verb, without other calls."""

    per_core_s: list[float] = field(default_factory=list)
    alone_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def milliseconds(self, verb: str) -> tuple[float, float]:
        """Return p50 and p99 of the verb, in milliseconds, over all rounds."""
        taken_s = self.alone_s[verb]
        return median(taken_s) * 1e3, quantiles(taken_s, n=100)[98] * 1e3


def measure(size: Size, rounds: int, pods: int) -> Measured:
    """Measure some rounds of `pods` each. The binds of half of them run in parallel."""
    measured = Measured()
    with other_side(size) as (pid, port):
        for number in range(rounds + 1):
            ready = list(_ready(size, number * pods, pods))
            # The first round only warms up.
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
    """Call the verbs for one pod after the other. Each bind runs in parallel with the next pod's
    calls. If another pod has filled the GPU by then, a node is chosen again."""
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
    """Return the node that kube-scheduler would choose, and the seconds of each verb."""
    found, filter_s = caller.call("filter", asked.filter)
    names = found.get("NodeNames")
    if not names:
        raise RuntimeError(f"{asked.name} fits nowhere: {str(found)[:300]}")
    body = _arguments(asked.pod, json.dumps(names, separators=(",", ":")).encode())
    scores, prioritize_s = caller.call("prioritize", body)
    node = max(scores, key=lambda each: each["Score"])["Host"]
    return node, {"filter": filter_s, "prioritize": prioritize_s}


def bind(caller: Caller, asked: PodCalls, node: str) -> tuple[bool, float]:
    """Bind the pod. Return whether the node still had capacity, and the seconds."""
    said = {"PodName": asked.name, "PodNamespace": asked.namespace, "PodUID": asked.uid}
    said["Node"] = node
    answer, taken_s = caller.call("bind", json.dumps(said).encode())
    return not answer.get("Error"), taken_s


def _ready(size: Size, first: int, count: int) -> Iterator[PodCalls]:
    chance = random.Random(first)
    listed = orders(chance.sample(size.shape.node_names(), sample_size(size.nodes)), chance)
    for number, names in zip(range(first, first + count), listed, strict=False):
        yield PodCalls.of(pod(number, (ASKED,)), names)


def orders(names: Sequence[str], chance: random.Random) -> Iterator[bytes]:
    """Yield the names as JSON, in a new order for each pod."""
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
    """Run the extender on its own core. Yield its process id and port."""
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
    """Bind this thread, and the processes that it starts, to the core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
