"""Many pods at once on a real kube-scheduler and the extender, on nodes that exist only as objects.

A thousand pods are created at once, more than the GPUs can hold. Then some are deleted and others
created, while programs of the scheduler are killed. The storm ends after all kills, when no pod
that fits anywhere waits.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpuslice.kube.client import Kube
from lab.cluster.api import each
from lab.cluster.installation import Installation
from lab.cluster.supervised import Process
from tests.load.accounts import Books
from tests.load.generator import Load, LoadError

_EVERY_S: Final = 1.0
"""Interval of checks, of restarts, and of deletions and creations of pods."""
_UP_S: Final = 120.0
_CHURN: Final = 40
_PODS, _CHANGED = 1000, 300
_PAGE: Final = 20_000
"""The most characters of each page of the extender in a failed storm's report."""


class Storm(Load):
    """strict: each fitting pod must be bound within `timeout_s`. A storm that is not strict suits
    busy machines: `timeout_s` starts again whenever any pod is bound."""

    mix = "storm"
    timeout_s = 30.0

    def __init__(
        self, api: Kube, chance: random.Random, namespace: str = "default", strict: bool = True
    ) -> None:
        super().__init__(api, chance, namespace)
        self._strict = strict
        self._progress_s = time.monotonic()
        self._fitting_since: dict[str, float] = {}

    async def begin(self) -> None:
        """Wait until a first pod is bound, which shows that all programs run."""
        await self.come(1)
        deadline_s = time.monotonic() + _UP_S
        while not (await self.account()).bound:
            if time.monotonic() > deadline_s:
                raise LoadError(f"nothing is bound within {_UP_S:.0f} s, before the storm")
            await asyncio.sleep(_EVERY_S)

    async def go(self, count: int) -> int:
        """Delete this number of bound pods, or all if there are fewer. Return the number."""
        await self.account()
        bound = [name for name, pod in self.pods.items() if pod["spec"].get("nodeName")]
        chosen = self.chance.sample(bound, min(count, len(bound)))
        await self._delete(chosen)
        return len(chosen)

    async def clear(self) -> None:
        await self.account()
        await self._delete(list(self.pods))

    async def account(self) -> Books:
        before = len(self._bound)
        made = await super().account()
        if len(self._bound) > before:
            self._progress_s = time.monotonic()
        return made

    async def calm(self) -> Books:
        """Wait until no pod that fits is pending. Raises LoadError if one waits for too long."""
        while True:
            now_s = time.monotonic()
            made = await self.account()
            since = {uid: self._fitting_since.get(uid, now_s) for uid in made.fitting}
            self._fitting_since = since
            if not since:
                return made
            first_s = min(since.values())
            self.wait_ended(first_s)
            late = sum(self.waited_s(at) > self.timeout_s for at in since.values())
            if late and (self._strict or self.waited_s(self._progress_s) > self.timeout_s):
                said = "\n".join(self._said(since))
                longest_s = self.waited_s(first_s)
                raise LoadError(f"{late} pods fit and wait, for {longest_s:.0f} s:\n{said}")
            await asyncio.sleep(_EVERY_S)

    def _said(self, uids: Container[str]) -> Sequence[str]:
        """Return kube-scheduler's messages for these pods, the most frequent first."""
        said = Counter(
            f"{each.get('message', 'never tried')} ({each.get('lastTransitionTime')})"
            for pod in self.pods.values()
            if pod["metadata"]["uid"] in uids
            for each in pod["status"].get("conditions", [{}])
        )
        return [f"{count}: {text}" for text, count in said.most_common(20)]

    async def _delete(self, pods: Sequence[str]) -> None:
        """Delete pods without a grace period, because no kubelet confirms their end."""
        await each(pods, lambda name: self.delete(name, grace_period_s=0))


@dataclass(frozen=True)
class Disturbance:
    """extender_kills: how often the extender is killed, each time within `kill_after_s` after it
    was ready. apiserver_freezes: how often kube-apiserver is stopped (SIGSTOP), each time for a
    random time within `frozen_for_s`. After a long stop kube-scheduler loses its Lease.
    kube_scheduler_every_s: interval of its kills, 0 for none. lasts_s: the storm's least duration.
    second: a second installation also runs. lease_s: the duration of kube-scheduler's Lease."""

    about: str
    extender_kills: int = 0
    kill_after_s: tuple[float, float] = (1.0, 10.0)
    apiserver_freezes: int = 0
    frozen_for_s: tuple[float, float] = (1.0, 20.0)
    kube_scheduler_every_s: float = 0.0
    lasts_s: float = 0.0
    second: bool = False
    lease_s: int = 15

    @property
    def disturbs(self) -> bool:
        kills = self.extender_kills or self.kube_scheduler_every_s
        return bool(kills or self.apiserver_freezes)


async def pass_over(
    storm: Storm,
    disturbance: Disturbance,
    installation: Installation,
    apiserver: Process,
    log: Callable[[str], None] = lambda _: None,
) -> None:
    """Run the complete storm: 1,000 pods at once, until calm, then 300 are deleted and 300 created.

    While programs are killed, pods are deleted and created all the time, so that each kill
    interrupts work. Raises LoadError.
    """

    async def restart_exited() -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            await asyncio.to_thread(installation.restart_exited)

    async def until_calm(what: str) -> None:
        made = await storm.calm()
        log(f"{what}: {len(made.bound)} bound, {len(made.pending)} fit nowhere")

    restarting = asyncio.create_task(restart_exited())
    try:
        await storm.begin()
        begun_s = time.monotonic()
        await storm.come(_PODS)
        if disturbance.disturbs:
            await _kill(storm, disturbance, installation, apiserver, log)
        await until_calm("all have come")
        await storm.go(_CHANGED)
        await storm.come(_CHANGED)
        await until_calm(f"{_CHANGED} have gone, {_CHANGED} have come")
        storm.figures.took_s = time.monotonic() - begun_s
        # The metric has only the requeued pods since the extender's last start.
        metric = r"^gpuslice_scheduler_requeued_pods_total{.*} (\S+)"
        found = re.findall(metric, installation.ask("/metrics")[1], re.MULTILINE)
        storm.figures.requeued = int(sum(map(float, found)))
    except LoadError as error:
        for path in ("/readyz", "/metrics", "/debug/fleet"):
            error.add_note(f"{path}: {installation.ask(path)[1][:_PAGE]}")
        error.add_note(installation.extender.log_tail())
        raise
    finally:
        restarting.cancel()
        await asyncio.wait([restarting])


async def _kill(
    storm: Storm,
    disturbance: Disturbance,
    installation: Installation,
    apiserver: Process,
    log: Callable[[str], None],
) -> None:
    over = asyncio.Event()

    async def churn() -> None:
        while not await _comes(over, _EVERY_S):
            await storm.account()
            await storm.come(await storm.go(_CHURN))

    async def kill(process: Any, name: str) -> None:
        await asyncio.to_thread(process.kill)
        storm.killed(name)
        await asyncio.to_thread(installation.restart_exited)

    async def kill_kube_scheduler() -> None:
        while not await _comes(over, disturbance.kube_scheduler_every_s or None):
            await kill(installation.kube_scheduler, "kube-scheduler")

    async def kill_extender() -> None:
        for number in range(disturbance.extender_kills):
            await asyncio.to_thread(installation.wait_ready)
            await asyncio.sleep(storm.chance.uniform(*disturbance.kill_after_s))
            await kill(installation.extender, "extender")
            bound = f"{storm.figures.bound} bound so far"
            log(f"kill {number + 1} of {disturbance.extender_kills}: {bound}")

    async def freeze_apiserver() -> None:
        for number in range(disturbance.apiserver_freezes):
            await asyncio.sleep(storm.chance.uniform(*disturbance.kill_after_s))
            frozen_s = storm.chance.uniform(*disturbance.frozen_for_s)
            with apiserver.frozen():
                await asyncio.sleep(frozen_s)
            storm.killed("kube-apiserver")
            log(f"frozen {number + 1} of {disturbance.apiserver_freezes} times: {frozen_s:.0f} s")

    async def cause_faults() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(kill_extender())
            group.create_task(freeze_apiserver())
            group.create_task(asyncio.sleep(disturbance.lasts_s))
        over.set()

    try:
        async with asyncio.TaskGroup() as group:
            for task in (cause_faults(), kill_kube_scheduler(), churn()):
                group.create_task(task)
    except* LoadError as errors:
        raise LoadError("\n".join(map(str, errors.exceptions))) from errors


async def _comes(event: asyncio.Event, within_s: float | None) -> bool:
    try:
        async with asyncio.timeout(within_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
