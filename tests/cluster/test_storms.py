"""Short storms of pods: a thousand pods at once on a hundred nodes (`make storm` runs all).

The storms run without faults, with the extender killed, and with kube-apiserver frozen. In another
test the lease holder is stopped in the middle of its work, and continues after another holder has
taken over.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from operator import attrgetter

import pytest

from lab.cluster.api import connected
from lab.cluster.controlplane import ControlPlane
from lab.cluster.fleet import Fleet
from lab.cluster.fleet_objects import Shape
from lab.cluster.installation import Installation
from tests.cluster.running import replica, running
from tests.load.storm import Disturbance, Storm, pass_over

pytestmark = [pytest.mark.cluster, pytest.mark.e2e, pytest.mark.timeout(900)]

DISTURBANCES = [
    Disturbance("calm"),
    Disturbance("the extender is killed", extender_kills=8, kill_after_s=(3.0, 9.0)),
    Disturbance("kube-apiserver is frozen", apiserver_freezes=2, frozen_for_s=(2.0, 15.0)),
]
PODS, CHANGED, HALTS = 250, 30, 4
WITHIN_S = 120.0


@asynccontextmanager
async def _storm(plane: ControlPlane, namespace: str, seed: int) -> AsyncIterator[Storm]:
    async with connected(plane.kubeconfig()) as api:
        await api.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
        storm = Storm(api, random.Random(seed), namespace, strict=False)
        yield storm
        await storm.clear()


@pytest.mark.parametrize("disturbance", DISTURBANCES, ids=lambda disturbance: disturbance.about)
def test_in_a_storm_accounting_is_exact(installed: ControlPlane, disturbance: Disturbance) -> None:
    async def run(installation: Installation) -> Storm:
        async with _storm(installed, f"storm-{DISTURBANCES.index(disturbance)}", 6) as storm:
            await pass_over(storm, disturbance, installation, installed.apiserver)
            return storm

    with Fleet(installed, Shape(nodes=100).all_nodes()), running(installed) as installation:
        storm = asyncio.run(run(installation))
    assert storm.figures.bound >= 900
    assert storm.figures.kills.total() == disturbance.extender_kills + disturbance.apiserver_freezes


def test_a_scheduler_that_is_halted_and_continues_allocates_nothing_twice(
    installed: ControlPlane,
) -> None:
    async def run(replicas: Sequence[Installation]) -> Storm:
        async with _storm(installed, "halts", 7) as storm:
            await storm.begin()
            await storm.come(PODS)
            for _ in range(HALTS):
                await _halt(storm, replicas)
            await storm.calm()
            return storm

    nodes = Fleet(installed, Shape(nodes=20, prefix="halt-").all_nodes())
    with nodes, replica(installed, "a") as first, replica(installed, "b") as second:
        storm = asyncio.run(run((first, second)))
    assert storm.figures.kills.total() == HALTS
    assert storm.figures.bound >= PODS // 2


async def _halt(storm: Storm, replicas: Sequence[Installation]) -> None:
    holder = await _binding(storm, replicas)
    (other,) = (each for each in replicas if each is not holder)
    await _churn(storm)
    with holder.extender.frozen(), holder.kube_scheduler.frozen():
        storm.killed("lease holder")
        await _binding(storm, [other])
    for _ in range(5):
        await _churn(storm)
        for each in replicas:
            each.start_kube_scheduler()


async def _binding(storm: Storm, replicas: Sequence[Installation]) -> Installation:
    """Create and delete pods until one of the replicas binds. Return that replica."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            await _churn(storm)
            for each in replicas:
                each.start_kube_scheduler()  # kube-scheduler exits when it loses its Lease
                if await asyncio.to_thread(attrgetter("binds"), each):
                    return each


async def _churn(storm: Storm) -> None:
    await storm.account()
    await storm.go(CHANGED)
    await storm.come(CHANGED)
    await asyncio.sleep(0.5)
