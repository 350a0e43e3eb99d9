"""What befalls the scheduler while a storm of pods is on: programs are killed, over and over."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from simgpu.lab.installation import Installation
from tests.cluster.storm import Storm, StormError

_CHURN: Final = 40
_CHURN_EVERY_S: Final = 1.0
_TEND_EVERY_S: Final = 1.0
_PAGE: Final = 20_000
"""Characters of each of the extender's pages, where a storm failed."""


@dataclass(frozen=True)
class Weather:
    """extender_kills: so often, each `kill_after_s` after it was ready, at random between the two.
    kube_scheduler_every_s: 0 for never. lasts_s: at least. second: another installation runs.
    lease_s: kube-scheduler's."""

    about: str
    extender_kills: int = 0
    kill_after_s: tuple[float, float] = (1.0, 10.0)
    kube_scheduler_every_s: float = 0.0
    lasts_s: float = 0.0
    second: bool = False
    lease_s: int = 15


async def pass_over(
    storm: Storm,
    weather: Weather,
    installation: Installation,
    pods: int = 1000,
    changed: int = 300,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """The whole storm: so many pods at once, until calm; then so many go, and as many come.

    While programs are killed, a few pods go and as many come all the time, so that each kill meets
    work. Raises StormError.
    """
    tending = asyncio.create_task(_tend(installation))
    try:
        await storm.begin()
        begun_s = time.monotonic()
        await storm.come(pods)
        if weather.extender_kills or weather.kube_scheduler_every_s:
            await _kill(storm, weather, installation, say)
        await _until_calm(storm, "all have come", say)
        await storm.go(changed)
        await storm.come(changed)
        await _until_calm(storm, f"{changed} have gone, {changed} have come", say)
        storm.figures.took_s = time.monotonic() - begun_s
        storm.figures.woken = _woken(installation)
    except StormError as error:
        for path in ("/readyz", "/metrics", "/debug/fleet"):
            error.add_note(f"{path}: {installation.ask(path)[1][:_PAGE]}")
        error.add_note(installation.extender.log_tail())
        raise
    finally:
        tending.cancel()
        await asyncio.wait([tending])


def _woken(installation: Installation) -> int:
    """By the extender as it runs now."""
    page = installation.ask("/metrics")[1]
    found = re.search(r"^gpuslice_scheduler_woken_pods_total (\S+)", page, re.MULTILINE)
    return int(float(found[1])) if found else 0


async def _until_calm(storm: Storm, what: str, say: Callable[[str], None]) -> None:
    made = await storm.calm()
    say(f"{what}: {len(made.bound)} bound, {len(made.pending)} fit nowhere")


async def _tend(installation: Installation) -> None:
    while True:
        await asyncio.sleep(_TEND_EVERY_S)
        await asyncio.to_thread(installation.tend)


async def _kill(
    storm: Storm, weather: Weather, installation: Installation, say: Callable[[str], None]
) -> None:
    over = asyncio.Event()

    async def churn() -> None:
        while not await _comes(over, _CHURN_EVERY_S):
            await storm.look()
            await storm.come(await storm.go(_CHURN))

    async def kill_kube_scheduler() -> None:
        while not await _comes(over, weather.kube_scheduler_every_s or None):
            await asyncio.to_thread(installation.kube_scheduler.kill)
            storm.killed()
            await asyncio.to_thread(installation.tend)

    async def kill_extender() -> None:
        for number in range(weather.extender_kills):
            await asyncio.to_thread(installation.wait_ready)
            await asyncio.sleep(storm.chance.uniform(*weather.kill_after_s))
            await asyncio.to_thread(installation.extender.kill)
            storm.killed()
            await asyncio.to_thread(installation.tend)
            say(
                f"kill {number + 1} of {weather.extender_kills}: {storm.figures.bound} bound so far"
            )

    async def blow() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(kill_extender())
            group.create_task(asyncio.sleep(weather.lasts_s))
        over.set()

    try:
        async with asyncio.TaskGroup() as group:
            for task in (blow(), kill_kube_scheduler(), churn()):
                group.create_task(task)
    except* StormError as errors:
        raise StormError("\n".join(map(str, errors.exceptions))) from errors


async def _comes(event: asyncio.Event, within_s: float | None) -> bool:
    try:
        async with asyncio.timeout(within_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
