"""Pods that come and go in a cluster, judged at every look: what all loads have in common.

At each look the API server's pods and Devices are added up by another program than ours
(accounts.py), and the first thing that does not add up raises LoadError. storm.py judges the
scheduler alone by it, crowd.py also what the containers see.
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from simgpu.lab.api import Api, each
from tests.load import kinds
from tests.load.accounts import Books, books

Json = dict[str, Any]

DEVICES: Final = "/apis/scheduling.koordinator.sh/v1alpha1/devices"


class LoadError(AssertionError):
    """The accounts are wrong, a pod that fits waits for too long, or a limit is not right."""


@dataclass
class Figures:
    """What a load was.

    bound: pods with a node. kills: by what was killed.
    Of a storm: longest_wait_s, of a pod while it fitted somewhere, from the first look that said
    so, or from the last kill; woken, pods that kube-scheduler had to be told of.
    Of a crowd: waits_s, by what was killed last (""; nothing), how long each pod that fitted waited
    until all its containers ran; silence_s, the longest between two looks of one container; short,
    looks at which the GPU had less than the limit (inside.is_short); of_containerd, how much of
    what a killed containerd has left of its own.
    """

    made: int = 0
    bound: int = 0
    deleted: int = 0
    looks_at_books: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    longest_wait_s: float = 0.0
    woken: int = 0
    took_s: float = 0.0
    ran: int = 0
    most_at_once: int = 0
    looks_inside: int = 0
    restarts: int = 0
    silence_s: float = 0.0
    short: int = 0
    of_containerd: Counter[str] = field(default_factory=Counter)
    waits_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


class Load:
    """api: of a user who may make and delete pods in the namespace, and read Devices."""

    mix: ClassVar[str]
    """Whose share of each kind of pods this load makes (kinds.KINDS)."""
    patience_s: ClassVar[float]
    """A pod that fits waits no longer than this, after its coming and after the last kill."""

    def __init__(self, api: Api, chance: random.Random, namespace: str = "default") -> None:
        self.figures = Figures()
        self.chance = chance
        self.devices: Sequence[Json] = ()
        self.pods: dict[str, Json] = {}
        self.kills: list[tuple[float, str]] = []
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._bound: set[str] = set()

    async def come(self, count: int) -> None:
        """So many pods, at once."""
        first = self.figures.made
        self.figures.made += count
        drawn = kinds.drawn(self.chance, count, self.mix)
        await each([(f"{kind}-{first + at}", kind) for at, kind in enumerate(drawn)], self._make)

    def killed(self, what: str) -> None:
        """A program was, just now; what fits is owed its place from now on."""
        self.kills.append((time.monotonic(), what))
        self.figures.kills[what] += 1

    def waited_s(self, since_s: float) -> float:
        """Now, by a pod that is owed its place since then: not while something was killed."""
        last_kill_s = self.kills[-1][0] if self.kills else 0.0
        return time.monotonic() - max(since_s, last_kill_s)

    async def account(self) -> Books:
        """The pods as the API server has them, added up. Raises LoadError where anything is wrong;
        of a pod that asks for nothing, nothing can be."""
        if not self.devices:
            self.devices = (await self._api.ask("GET", DEVICES))["items"]
        listed = (await self._api.ask("GET", self._path))["items"]
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
        grace = {} if grace_period_s is None else {"gracePeriodSeconds": grace_period_s}
        await self._api.ask("DELETE", f"{self._path}/{name}", grace or None)

    async def _make(self, what: tuple[str, str]) -> None:
        await self._api.ask("POST", self._path, kinds.pod(*what))
