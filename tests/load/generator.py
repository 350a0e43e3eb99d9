"""Pods that are created and deleted in a cluster, with checks: the common part of all loads.

Each check adds up the API server's pods and Devices by code independent of the product
(accounts.py); the first error raises LoadError. storm.py checks the scheduler alone, crowd.py also
what the containers observe.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from gpuslice.kube.client import Kube
from lab.cluster.api import TIMEOUT_S, each
from tests.load import kinds
from tests.load.accounts import Books, books

Json = dict[str, Any]

DEVICES: Final = "/apis/scheduling.koordinator.sh/v1alpha1/devices"


class LoadError(AssertionError):
    """A GPU's sums are wrong, a pod that fits waits for too long, or a limit is not right."""


@dataclass
class Figures:
    """The results of a load.

    bound: pods with a node. kills: number by program. longest_wait_s: the longest wait of a pod
    that fitted somewhere. It begins at the first check that showed this, or at the last kill. It
    ends when the pod has a node, or in a crowd when all its containers run. requeued: pods that the
    scheduler requeued. short: reports of a GPU with less free memory than the limit
    (inside.is_short).
    """

    made: int = 0
    bound: int = 0
    looks_at_books: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    longest_wait_s: float = 0.0
    requeued: int = 0
    took_s: float = 0.0
    ran: int = 0
    most_at_once: int = 0
    looks_inside: int = 0
    restarts: int = 0
    short: int = 0


class Load:
    """A load on a cluster. api: a client whose user may create and delete pods and read Devices."""

    mix: ClassVar[str]
    """The load's name in `kinds.Kind`: "storm" or "crowd"."""
    timeout_s: ClassVar[float]
    """The longest time that a fitting pod may wait, after its creation and after the last kill."""

    def __init__(self, api: Kube, chance: random.Random, namespace: str = "default") -> None:
        self.figures = Figures()
        self.chance = chance
        self.devices: Sequence[Json] = ()
        self.pods: dict[str, Json] = {}
        self._last_kill_s = 0.0
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._bound: set[str] = set()

    async def come(self, count: int) -> None:
        first = self.figures.made
        self.figures.made += count
        drawn = kinds.drawn(self.chance, count, self.mix)
        await each([(f"{kind}-{first + at}", kind) for at, kind in enumerate(drawn)], self._make)

    def killed(self, what: str) -> None:
        """Record that a program was killed just now. The wait of fitting pods starts again."""
        self._last_kill_s = time.monotonic()
        self.figures.kills[what] += 1

    def waited_s(self, since_s: float) -> float:
        """Return how long a pod that fits since `since_s` has waited. A kill restarts its wait."""
        return time.monotonic() - max(since_s, self._last_kill_s)

    def wait_ended(self, since_s: float) -> None:
        self.figures.longest_wait_s = max(self.figures.longest_wait_s, self.waited_s(since_s))

    async def account(self) -> Books:
        """Add up the API server's pods that request something. Raises LoadError."""
        if not self.devices:
            self.devices = (await self._api.get(DEVICES, timeout_s=TIMEOUT_S))["items"]
        listed = (await self._api.get(self._path, timeout_s=TIMEOUT_S))["items"]
        self.pods = {pod["metadata"]["name"]: pod for pod in listed}
        self.figures.looks_at_books += 1
        made = books(
            [pod for pod in listed if pod["metadata"]["labels"]["kind"] != "plain"], self.devices
        )
        self._bound |= made.bound
        self.figures.bound = len(self._bound)
        if made.wrong:
            raise LoadError("\n".join(made.wrong[:20]))
        return made

    async def delete(self, name: str, grace_period_s: int | None = None) -> None:
        grace = None if grace_period_s is None else {"gracePeriodSeconds": grace_period_s}
        await self._api.delete(f"{self._path}/{name}", grace, timeout_s=TIMEOUT_S)

    async def _make(self, what: tuple[str, str]) -> None:
        await self._api.post(self._path, kinds.pod(*what), timeout_s=TIMEOUT_S)
