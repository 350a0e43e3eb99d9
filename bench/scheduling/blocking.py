"""Measures how long the event loop is blocked by one call, or by one search for unschedulable pods,
while pods wait that are hard to place. A timer shows how late a Lease's renewal would be.

All runs in this process, without HTTP and the API server. Each waiting pod has one container more
than a node has GPUs, and each container requests more than half of a GPU, so the pod fits on no
node. The pods' shapes differ, so none share a search. All nodes change each second. `filter` gets a
tenth of the nodes, as in kube-scheduler's samples. Times are wall-clock times.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from bench.scheduling.caller import pod
from bench.scheduling.fleets import GPUS, Size, filled, held
from bench.scheduling.verbs import PodCalls, orders
from scheduler.decisions.requeue import TIMEOUT_S, Unschedulable
from scheduler.decisions.state import State
from scheduler.decisions.verbs import Verbs
from scheduler.requeuer import SLICE_S
from scheduler.service import COLLECTED_AFTER

PODS: Final = 300
VICTIMS: Final = (2, 4, 8)
"""The measured numbers of victims per node."""
_PREEMPTIONS: Final = 10
"""How often each of two pods calls `preempt` for each of VICTIMS. One pod fits nowhere."""
_SECONDS: Final = 3
"""The number of simulated seconds in which the queue works."""
_TIMER_S: Final = 0.02


@dataclass
class Measured:
    """longest_s: the longest blocking by kind of call. late_s: how late the timer was at most."""

    longest_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    late_s: float = 0.0

    @contextmanager
    def blocking(self, kind: str) -> Iterator[None]:
        began_s = time.perf_counter()
        yield
        self.longest_s[kind] = max(self.longest_s[kind], time.perf_counter() - began_s)


def measure(size: Size, pods: int = PODS) -> Measured:
    state = filled(size)
    before = gc.get_threshold()
    gc.set_threshold(*COLLECTED_AFTER)
    gc.collect()
    gc.freeze()
    try:
        return asyncio.run(_measure(state, size, pods))
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


async def _measure(state: State, size: Size, pods: int) -> Measured:
    measured = Measured()
    queue = Unschedulable(state)
    verbs = Verbs(state, retries=queue)
    names = size.shape.node_names()
    ready = list(_hard(size, pods))
    texts = [json.dumps(_victims(size, count), separators=(",", ":")) for count in VICTIMS]
    timer = asyncio.create_task(_renewals(measured))
    for asked in ready:
        with measured.blocking("filter"):
            answer = verbs.filter(asked.filter)
        if json.loads(answer)["NodeNames"]:
            raise RuntimeError(f"{asked.name} should fit nowhere")
        await asyncio.sleep(0)
        # kube-scheduler would not call `prioritize` after a refusal. This measures its cost.
        listed = json.dumps(names[:32], separators=(",", ":")).encode()
        with measured.blocking("prioritize"):
            verbs.prioritize(b'{"Pod":%b,"Nodes":null,"NodeNames":%b}' % (asked.pod, listed))
        await asyncio.sleep(0)
    whole = json.dumps(pod(pods, (100,)), separators=(",", ":")).encode()
    for count, victims in zip(VICTIMS, map(str.encode, texts), strict=True):
        for asked in islice(ready, _PREEMPTIONS):
            for asking in (asked.pod, whole):
                await _preempt(verbs, measured, count, asking, victims)
    for second in range(_SECONDS):
        _change_all(state)
        await asyncio.sleep(0)
        # The queue waits TIMEOUT_S after a change.
        for now_s in (second * 100.0, second * 100.0 + TIMEOUT_S):
            is_over = False
            while not is_over:
                end = _until(time.monotonic() + SLICE_S)
                with measured.blocking("queue"):
                    is_over = queue.work(now_s, end)
                await asyncio.sleep(0)
    timer.cancel()
    return measured


def _until(end_s: float) -> Callable[[], bool]:
    return lambda: time.monotonic() >= end_s


async def _preempt(
    verbs: Verbs, measured: Measured, count: int, asking: bytes, victims: bytes
) -> None:
    body = b'{"Pod":%b,"NodeNameToVictims":null,"NodeNameToMetaVictims":%b}' % (asking, victims)
    parts = verbs.preempt(body)
    is_over = False
    while not is_over:
        with measured.blocking(f"preempt_{count}"):
            is_over = next(parts, None) is None
        await asyncio.sleep(0)


async def _renewals(measured: Measured) -> None:
    while True:
        due_s = time.perf_counter() + _TIMER_S
        await asyncio.sleep(_TIMER_S)
        measured.late_s = max(measured.late_s, time.perf_counter() - due_s)


def _change_all(state: State) -> None:
    for row in state.fleet.all_rows().tolist():
        state.fleet.note_freed(row)


def _hard(size: Size, pods: int) -> Iterator[PodCalls]:
    sample = size.shape.node_names()[: max(1, size.nodes // 10)]
    listed = orders(sample, random.Random(0))
    for number, names in zip(range(pods), listed, strict=False):
        # The sizes of the first three containers encode the pod's number, so all shapes differ.
        first = [51 + number // 10**digit % 10 for digit in range(3)]
        yield PodCalls.of(pod(number, (*first, *[51] * (GPUS - 2))), names)


def _victims(size: Size, count: int) -> Mapping[str, object]:
    """Return the first `count` pods of each node, as victims."""
    names = size.shape.node_names()
    there: dict[int, list[Mapping[str, str]]] = defaultdict(list)
    for number, (node, _, _) in enumerate(held(size)):
        if len(there[node]) < count:
            there[node].append({"UID": f"there-{number}"})
    return {names[node]: {"Pods": pods, "NumPDBViolations": 0} for node, pods in there.items()}
