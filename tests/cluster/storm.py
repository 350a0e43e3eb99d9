"""A storm of pods over a real kube-scheduler and us, judged by the accountant.

A thousand pods at once, more than the cards bear; then some go and others come, again and again,
while whatever the weather brings kills programs. It ends when all killing is over and no pod that
fits anywhere is waiting. At every look the books are right, or the storm fails.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final

from simgpu.lab.api import Api, each
from tests.cluster.accountant import Books, books

Json = dict[str, Any]

PATIENCE_S: Final = 30.0
"""A pod that fits waits no longer than this, once nothing is killed any more."""
KINDS: Final[Mapping[str, tuple[int, Sequence[tuple[int, int]]]]] = {
    "whole": (30, [(1, 100)]),
    "large": (35, [(1, 60)]),
    "small": (20, [(1, 40)]),
    "halves": (10, [(1, 50), (1, 50)]),
    "two-cards": (5, [(2, 100)]),
}
"""By kind: how many of a hundred pods, and of each container how many cards and percent of each. A
hundred pods want 85 cards."""
_LOOK_S: Final = 1.0
_UP_S: Final = 120.0


class StormError(AssertionError):
    """The books are wrong, or a pod that fits waits for too long."""


@dataclass
class Figures:
    """What a storm was. longest_wait_s: of a pod while it fitted somewhere, from the first look
    that said so, or from the last kill. woken: pods that kube-scheduler had to be told of."""

    pods: int = 0
    bound: int = 0
    looks: int = 0
    kills: int = 0
    longest_wait_s: float = 0.0
    woken: int = 0
    took_s: float = 0.0


@dataclass
class Storm:
    """In one namespace. api: of somebody who may make and delete pods there, and read Devices.
    strict: PATIENCE_S is of each pod; else it begins anew whenever any pod is bound, for machines
    that have other things to do."""

    api: Api
    namespace: str
    scheduler_name: str
    chance: random.Random
    strict: bool = True
    figures: Figures = field(default_factory=Figures)
    last_kill_s: float = field(default_factory=time.monotonic)
    _progress_s: float = 0.0
    _devices: Sequence[Json] = ()
    _fitting_since: dict[str, float] = field(default_factory=dict)
    _bound: set[str] = field(default_factory=set)

    # --- pods come and go

    async def begin(self) -> None:
        """Until a first pod is bound: then all that runs is up."""
        await self.come(1)
        deadline_s = time.monotonic() + _UP_S
        while not (await self.look()).bound:
            if time.monotonic() > deadline_s:
                raise StormError(f"nothing is bound within {_UP_S:.0f} s, before the storm")
            await asyncio.sleep(_LOOK_S)

    async def come(self, count: int) -> None:
        """So many pods, at once."""
        kinds = [kind for kind, (share, _) in KINDS.items() for _ in range(share)]
        first = self.figures.pods
        self.figures.pods += count
        made = [self._pod(first + number, self.chance.choice(kinds)) for number in range(count)]
        await each(made, self._create)

    async def go(self, count: int) -> int:
        """So many of those that are bound are deleted, or all of them; how many."""
        pods = [pod for pod in await self._list() if pod["spec"].get("nodeName")]
        chosen = self.chance.sample(pods, min(count, len(pods)))
        await each(chosen, self._delete)
        return len(chosen)

    async def clear(self) -> None:
        await each(await self._list(), self._delete)

    def killed(self) -> None:
        """A program was, just now; what fits is owed its place from now on."""
        self.figures.kills += 1
        self.last_kill_s = time.monotonic()

    # --- the judge

    async def look(self) -> Books:
        """Raises StormError where something does not add up."""
        if not self._devices:
            path = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
            self._devices = (await self.api.ask("GET", path))["items"]
        made = books(await self._list(), self._devices)
        self.figures.looks += 1
        if made.bound - self._bound:
            self._progress_s = time.monotonic()
        self._bound |= made.bound
        self.figures.bound = len(self._bound)
        if made.wrong:
            raise StormError("\n".join(made.wrong[:20]))
        return made

    async def calm(self) -> Books:
        """Until no pod that fits is waiting. Raises StormError where one does for too long."""
        while True:
            now_s = time.monotonic()
            made = await self.look()
            fitting = made.fitting
            since = {uid: self._fitting_since.get(uid, now_s) for uid in fitting}
            self._fitting_since = since
            if not fitting:
                return made
            waits = [now_s - max(at, self.last_kill_s) for at in since.values()]
            self.figures.longest_wait_s = max(self.figures.longest_wait_s, *waits)
            still_s = now_s - max(self._progress_s, self.last_kill_s)
            late = sum(wait > PATIENCE_S for wait in waits)
            if late and (self.strict or still_s > PATIENCE_S):
                said = "\n".join(await self._said(fitting))
                raise StormError(f"{late} pods fit and wait, for {max(waits):.0f} s:\n{said}")
            await asyncio.sleep(_LOOK_S)

    # --- inside

    async def _said(self, uids: Set[str]) -> Sequence[str]:
        """What kube-scheduler says of them, most said first."""
        pods = [pod for pod in await self._list() if pod["metadata"]["uid"] in uids]
        conditions = [each for pod in pods for each in pod["status"].get("conditions", [{}])]
        said = Counter(
            f"{each.get('message', 'never tried')} ({each.get('lastTransitionTime')})"
            for each in conditions
        )
        return [f"{count}: {text}" for text, count in said.most_common(20)]

    async def _list(self) -> Sequence[Json]:
        found = await self.api.ask("GET", self._path)
        pods: Sequence[Json] = found["items"]
        return pods

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    async def _create(self, pod: Json) -> None:
        await self.api.ask("POST", self._path, pod)

    async def _delete(self, pod: Json) -> None:
        path = f"{self._path}/{pod['metadata']['name']}"
        await self.api.ask("DELETE", path, {"gracePeriodSeconds": 0})

    def _pod(self, number: int, kind: str) -> Json:
        containers = [
            {
                "name": f"c{at}",
                "image": "busybox",
                "resources": {
                    what: {
                        "koordinator.sh/gpu.shared": str(cards),
                        "koordinator.sh/gpu-core": str(cards * percent),
                        "koordinator.sh/gpu-memory-ratio": str(cards * percent),
                    }
                    for what in ("requests", "limits")
                },
            }
            for at, (cards, percent) in enumerate(KINDS[kind][1])
        ]
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{kind}-{number}",
                "namespace": self.namespace,
                "labels": {"koordinator.sh/gpu-isolation-provider": "hami-core"},
            },
            "spec": {
                "schedulerName": self.scheduler_name,
                "containers": containers,
                "automountServiceAccountToken": False,
            },
        }
