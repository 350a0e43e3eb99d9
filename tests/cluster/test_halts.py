"""Whoever may bind is halted in the middle of its work until another has taken over; then it goes
on where it was. The accountant adds the grants up at every look.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Sequence

import pytest

from contract import names
from simgpu.lab.api import Api
from simgpu.lab.controlplane import ControlPlane
from simgpu.lab.fleet import Fleet
from simgpu.lab.fleet_objects import Shape
from simgpu.lab.installation import Installation
from tests.cluster.running import holds, replica
from tests.cluster.storm import Storm

pytestmark = [pytest.mark.cluster, pytest.mark.e2e, pytest.mark.timeout(900)]

SHAPE = Shape(nodes=20, prefix="halt-")
PODS, CHANGED, HALTS = 250, 30, 4
WITHIN_S = 120.0


def test_who_is_halted_and_goes_on_gives_nothing_away_twice(installed: ControlPlane) -> None:
    nodes = Fleet(installed, SHAPE.all_nodes())
    with nodes, replica(installed, "a") as first, replica(installed, "b") as second:
        storm = asyncio.run(_storm(installed, (first, second)))
    assert storm.figures.kills == HALTS
    assert storm.figures.bound >= PODS // 2


async def _storm(plane: ControlPlane, replicas: Sequence[Installation]) -> Storm:
    namespace = "halts"
    async with Api(plane) as api:
        await api.ask("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        storm = Storm(api, namespace, names.SCHEDULER_NAME, random.Random(7), strict=False)
        await storm.begin()
        await storm.come(PODS)
        for _ in range(HALTS):
            await _halt(storm, replicas)
        await storm.calm()
        await storm.clear()
    return storm


async def _halt(storm: Storm, replicas: Sequence[Installation]) -> None:
    holder = await _holder(storm, replicas)
    (other,) = (each for each in replicas if each is not holder)
    processes = (holder.extender, holder.kube_scheduler)
    await _churn(storm)
    for process in processes:
        process.send(signal.SIGSTOP)
    storm.killed()
    try:
        async with asyncio.timeout(WITHIN_S):
            while True:
                await _churn(storm)
                if await asyncio.to_thread(holds, other):
                    break
    finally:
        for process in processes:
            process.send(signal.SIGCONT)
    for _ in range(5):
        await _churn(storm)
        for each in replicas:
            each.tend_kube_scheduler()  # it ends by itself where it has lost its own Lease


async def _holder(storm: Storm, replicas: Sequence[Installation]) -> Installation:
    async with asyncio.timeout(WITHIN_S):
        while True:
            await _churn(storm)
            for each in replicas:
                if await asyncio.to_thread(holds, each):
                    return each


async def _churn(storm: Storm) -> None:
    await storm.look()
    await storm.go(CHANGED)
    await storm.come(CHANGED)
    await asyncio.sleep(0.5)
