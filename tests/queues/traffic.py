"""Pods that come, run and end in queues. At each look, no queue uses more than its limit.
Each queue has one.

No kubelet runs: `Traffic` reports that a bound pod runs, ends it after a while, and ends a pod that
is being deleted some time after its deletion.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from gpuslice.contract import names
from gpuslice.kube.client import Kube
from gpuslice.kube.errors import KubeError
from lab.cluster.api import TIMEOUT_S, each
from scheduler.queues.figures import milli_of
from scheduler.queues.tree import MILLI
from tests.queues.conftest import NAMESPACE
from tests.queues.kai import Q, leaves
from tests.requests.pods import asking, pod

Json = dict[str, Any]

PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
_EVENTS: Final = f"/api/v1/namespaces/{NAMESPACE}/events"
_ENDED: Final = ("Succeeded", "Failed")
_PERCENTS: Final = (30, 50, 100)
_LOOK_S: Final = 0.3
_TOGETHER: Final = 20
_STOP_S: Final = 1.0
"""The time that a pod which is being deleted still runs."""


class Traffic:
    """runs_s: the least and the longest time for which a pod runs. crowd: how many pods there are
    at once while they come. is_coming: whether new pods come. ends_above: pods end only while the
    top queue uses more than this part of its limit, so that the queues stay near their limits on a
    slow machine too."""

    def __init__(
        self,
        api: Kube,
        queues: Sequence[Q],
        chance: random.Random,
        runs_s: tuple[float, float],
        crowd: int,
    ) -> None:
        self._api, self._chance, self._runs_s, self._crowd = api, chance, runs_s, crowd
        self._queues = {queue.name: queue for queue in queues}
        self._leaves = [queue.name for queue in leaves(queues)]
        self.is_coming, self.ends_above = True, 0.7
        self.pods: Mapping[str, Json] = {}
        """The pods at the last look, by name."""
        self.made = self.refused = self.looks = 0
        self.over = 0
        """How often a queue was over its limit with the pods that were being deleted. Kueue counts
        these no more, though they still run (Pod.Load, FinishOrphanedWorkloads of Kueue 0.19)."""
        self.most = self._top = 0.0
        """The greatest part of its limit that a queue used at a look."""
        self.bound: set[str] = set()
        """The names of all pods that were ever bound."""
        self._ends_s: dict[str, float] = {}
        """When a pod that runs ends."""
        self._removed: set[str] = set()
        self.reclaimed: dict[str, float] = {}
        """When a bound pod that was deleted ends."""

    async def look(self) -> None:
        """List the pods, all of one version, and assert that no queue is over its limit by pods
        that are not being deleted."""
        self.pods = {
            each["metadata"]["name"]: {**each}
            async for page, _ in self._api.list(PODS)
            for each in page
        }
        used, leaving = Counter[str](), Counter[str]()
        for name, raw in self.pods.items():
            if is_bound(raw):
                self.bound.add(name)
            if is_bound(raw) and raw["status"]["phase"] not in _ENDED:
                for queue in self._path(raw["metadata"]["labels"][names.LABEL_KUEUE_QUEUE]):
                    (leaving if _is_deleted(raw) else used)[queue] += milli_of(raw["spec"])
        self.looks += 1
        self._top = 0.0
        for queue, milli in used.items():
            limit = self._queues[queue].limit * MILLI
            self.most = max(self.most, milli / limit)
            if not self._queues[queue].parent:
                self._top = milli / limit
            assert milli <= limit, f"{queue} uses {milli} of {limit}: {self._about(queue)}"
            self.over += milli + leaving[queue] > limit

    def _about(self, queue: str) -> Sequence[tuple[object, ...]]:
        return [
            (name, milli_of(raw["spec"]), raw["status"]["phase"], _is_deleted(raw))
            for name, raw in self.pods.items()
            if is_bound(raw)
            and queue in self._path(raw["metadata"]["labels"][names.LABEL_KUEUE_QUEUE])
        ]

    def _path(self, name: str) -> Sequence[str]:
        return (name, *self._path(self._queues[name].parent)) if name else ()

    async def run(self) -> None:
        """Look, make pods and end pods until cancelled."""
        while True:
            await self.look()
            if self.is_coming:
                there = sum(raw["status"]["phase"] not in _ENDED for raw in self.pods.values())
                await self.come(min(_TOGETHER, self._crowd - there))
            await each(self._due(), self._serve)
            await asyncio.sleep(_LOOK_S)

    async def come(self, count: int) -> None:
        """Make pods, in the queues by turns. One that is refused is made at a later time."""

        async def make(_: int) -> None:
            number, self.made = self.made, self.made + 1
            percent = self._chance.choice(_PERCENTS)
            shares = {names.RESOURCE_CORE: percent, names.RESOURCE_MEMORY_RATIO: percent}
            labels = {names.LABEL_KAI_QUEUE: self._leaves[number % len(self._leaves)]}
            raw = pod(asking(shares), name=f"pod-{number}", labels=labels)
            try:
                await self._api.post(PODS, raw, timeout_s=TIMEOUT_S)
            except KubeError as error:
                assert "kueue" in str(error), error
                self.refused += 1

        await each(range(count), make)

    def _due(self) -> Sequence[tuple[str, Json]]:
        """Return the pods whose phase is to be changed, and the new status."""
        now_s, due = time.monotonic(), list[tuple[str, Json]]()
        for name, raw in self.pods.items():
            if raw["status"]["phase"] in _ENDED:
                if name not in self._removed:
                    self._removed.add(name)
                    due.append((name, {}))
            elif not is_bound(raw):
                continue
            elif _is_deleted(raw):
                if now_s >= self.reclaimed.setdefault(name, now_s + _STOP_S):
                    due.append((name, {"phase": "Failed"}))
            elif raw["status"]["phase"] == "Pending":
                due.append((name, {"phase": "Running"}))
                self._ends_s[name] = now_s + self._chance.uniform(*self._runs_s)
            elif self._top > self.ends_above and now_s >= self._ends_s[name]:
                due.append((name, {"phase": "Succeeded"}))
        return due

    async def _serve(self, what: tuple[str, Json]) -> None:
        name, status = what
        path = f"{PODS}/{name}"
        with suppress(KubeError):  # the pod is gone
            if status:
                await self._api.patch(f"{path}/status", {"status": status}, timeout_s=TIMEOUT_S)
            else:
                await self._api.delete(path, {"gracePeriodSeconds": 0}, timeout_s=TIMEOUT_S)

    def gated(self) -> set[str]:
        return {name for name, raw in self.pods.items() if raw["spec"].get("schedulingGates")}

    async def explained(self) -> set[str]:
        """Return the names of the pods with an event that says what they wait for."""
        found = await self._api.get(_EVENTS, timeout_s=TIMEOUT_S)
        return {
            event["involvedObject"]["name"]
            for event in found["items"]
            if event["reason"] == names.EVENT_QUEUE_WAITING
        }


def is_bound(raw: Json) -> bool:
    return bool(raw["spec"].get("nodeName"))


def _is_deleted(raw: Json) -> bool:
    return "deletionTimestamp" in raw["metadata"]
