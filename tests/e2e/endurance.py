"""A cluster and a crowd of pods in it (tests/load/crowd.py) while faults are injected.

Pods come and go all the time; at the end all are deleted, and the node must be as before (node.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from lab.cluster.api import connected
from tests.e2e.node import Node
from tests.e2e.whole import Whole
from tests.load.crowd import Crowd
from tests.load.generator import Figures, LoadError
from tests.support import until

KILLED: Final = ("containerd", "kubelet", "gpuslice node agent", "gpuslice extender")
_PACE_S: Final = (0.3, 1.5)
"""Interval between two creations or deletions of pods."""
_KILL_AFTER_S: Final = (1.0, 8.0)
"""From a part's recovery to the next kill, of whichever part."""
_SPREAD: Final = 0.7
"""The crowd's size varies between this share of its maximum and the maximum."""
_CALM_EVERY_KILLS: Final = 10
_BACK_S: Final = 90.0
_CLEAN_S: Final = 240.0
_OF_CONTAINERD: Final = re.compile(
    r"\+ (process: \S+/containerd-shim-runc-v2 .*"
    r"|unix socket: \S+/s/\w+"
    r"|mount: /run/netns/cni-\S+ \(nsfs.*)"
)
"""Shims without a container, their sockets and network namespaces: a killed containerd has started
them for a pod and not recorded them yet; neither the next one nor any other program tracks them. A
container in a shim would be another process."""
_MIDDLE_S: Final = (15.0, 40.0)


@dataclass(frozen=True)
class Endurance:
    """A cluster and its crowd. most: pods at once. say: receives progress lines."""

    def __init__(
        self, whole: Whole, chance: random.Random, most: int, say: Callable[[str], None]
    ) -> None:
        self._whole = whole
        self._chance = chance
        self._most = most
        self._say = say
        self._node = Node(whole)

    def calm(self, lasts_s: float) -> Figures:
        return asyncio.run(self._during(lambda crowd: asyncio.sleep(lasts_s), until_gone=True))

    def kills(self, each: int) -> Figures:
        async def kill(crowd: Crowd) -> None:
            parts = [part for part in KILLED for _ in range(each)]
            self._chance.shuffle(parts)
            for number, part in enumerate(parts, 1):
                await asyncio.sleep(self._chance.uniform(*_KILL_AFTER_S))
                await self._kill(part, crowd)
                if number % _CALM_EVERY_KILLS == 0:
                    await crowd.calm()

        return asyncio.run(self._during(kill, until_gone=True))

    def kill_processes(self) -> Figures:
        """Kill all of them, while pods come and go."""

        async def middle(crowd: Crowd) -> None:
            await asyncio.sleep(self._chance.uniform(*_MIDDLE_S))

        figures = asyncio.run(self._during(middle, until_gone=False))
        processes = self._whole.marked()
        for pid in processes:
            with contextlib.suppress(ProcessLookupError):  # it ended with one of the others
                os.kill(pid, signal.SIGKILL)
        self._say(f"killed {len(processes)} processes")
        return figures

    async def _kill(self, part: str, crowd: Crowd) -> None:
        before = self._whole.pid(part)
        crowd.killed(part)
        self._whole.kill(before)

        def is_back() -> bool:
            return self._whole.state["parts"][part]["pid"] not in (before, None)

        await asyncio.to_thread(until, is_back, f"{part} is back", _BACK_S)
        self._say(f"killed: {part}; {len(crowd)} pods there, {_so_far(crowd.figures)}")

    async def _during(self, task: Callable[[Crowd], Awaitable[None]], until_gone: bool) -> Figures:
        """Pods are created and deleted while the task runs; at its end all are deleted."""
        async with connected(self._whole.directory / "kubeconfig") as api:
            crowd = Crowd(api, self._chance)
            await crowd.come(self._most)
            around = [self._come_and_go(crowd), self._look(crowd), _read(crowd)]
            tasks = [asyncio.create_task(each) for each in around]
            main = asyncio.ensure_future(task(crowd))
            done, _ = await asyncio.wait({*tasks, main}, return_when=asyncio.FIRST_COMPLETED)
            for each in {*tasks, main} - done:
                each.cancel()
            await asyncio.wait({*tasks, main})
            for each in done:
                each.result()
            if until_gone:
                await crowd.calm()
                self._say(f"all that fit run; {_so_far(crowd.figures)}; now all go")
                await crowd.clear()
        if until_gone:
            await asyncio.to_thread(self._wait_until_clean, crowd.figures)
        return crowd.figures

    def _wait_until_clean(self, figures: Figures) -> None:
        """The API server deletes a pod's object a moment before the node has removed the rest;
        containers that never started, because containerd was killed, are removed after two minutes.
        """
        left: Sequence[str] = ()

        def clean() -> bool:
            nonlocal left
            found = self._node.left()
            if figures.kills[KILLED[0]]:
                found = [line for line in found if not _OF_CONTAINERD.fullmatch(line)]
            left = found
            return not left

        try:
            until(clean, "the node is as it was", _CLEAN_S)
        except AssertionError as error:
            raise LoadError("pods have left on the node:\n" + "\n".join(left)) from error

    async def _come_and_go(self, crowd: Crowd) -> None:
        while True:
            await asyncio.sleep(self._chance.uniform(*_PACE_S))
            there = len(crowd)
            if there < self._most * _SPREAD or (there < self._most and self._chance.random() < 0.5):
                await crowd.come(1)
            else:
                await crowd.go()

    async def _look(self, crowd: Crowd) -> None:
        said_s = time.monotonic()
        while True:
            await crowd.look()
            await asyncio.sleep(1.0)
            if time.monotonic() - said_s > 30:
                said_s = time.monotonic()
                self._say(f"{len(crowd)} pods there, {_so_far(crowd.figures)}")


async def _read(crowd: Crowd) -> None:
    while True:
        await crowd.read()
        await asyncio.sleep(0.3)


def _so_far(figures: Figures) -> str:
    return (
        f"{figures.made} made, {figures.ran} ran, {figures.looks_inside} looks inside, "
        f"{figures.kills.total()} kills"
    )
