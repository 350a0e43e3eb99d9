"""Kueue, the extender and kube-scheduler are killed while pods come, run and end in queues; and
what a cluster does while Kueue is down."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from math import inf
from typing import Any, Final

import pytest

from gpuslice.contract import names
from lab.cluster import manifests
from lab.cluster.api import connected
from lab.cluster.controlplane import ControlPlane
from lab.cluster.fleet import Fleet
from lab.cluster.fleet_objects import Shape
from lab.cluster.installation import Installation
from lab.cluster.kueue import Kueue
from tests.cluster.server import Server
from tests.load.report import say
from tests.queues.kai import Q
from tests.queues.traffic import PODS, Traffic, is_bound
from tests.requests.pods import HALF, asking, pod
from tests.support import until

Json = dict[str, Any]

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2400)]

_INNER: Final = ("red", "green", "blue", "grey")
QUEUES: Final = [
    Q("all", 30, 40),
    *(Q(name, 6, 12, parent="all") for name in _INNER),
    *(Q(f"{name}-{each}", 1, 3, parent=name) for each in range(5) for name in _INNER),
]
"""20 leaves on the third level, with limits that add up to more than those above."""
_FLEET: Final = Shape(nodes=8)
_PODS, _CROWD, _KILLS = 1000, 150, 10
_SURPLUS: Final = 8
"""Pods of each leaf that come after the kills, more than its limit holds."""
_ON_S: Final = 180.0
_STEADY_S: Final = 10.0
_LEASE_S: Final = 4
OTHERS: Final = "/api/v1/namespaces/default/pods"


@pytest.fixture(scope="module")
def installation(plane: ControlPlane, running_kueue: Kueue) -> Iterator[Installation]:
    """Run gpuslice's scheduler with queues, and the queues on a fleet of 64 GPUs."""
    arguments = ("--queues", "--dialects=koordinator,kai")
    written = manifests.configuration(lease_s=_LEASE_S)
    with (
        Fleet(plane, _FLEET.all_nodes()),
        Installation(plane, written, arguments=arguments) as started,
        Server(plane) as server,
    ):
        started.wait_binds()
        for queue in QUEUES:
            server.make("/apis/scheduling.run.ai/v2/queues", queue.raw())
        probe = pod(asking(dict(HALF)))
        until(lambda: _counts(server, probe), "the policy counts")
        yield started


def _counts(server: Server, probe: Json) -> bool:
    answer = server.ask("POST", f"{PODS}?dryRun=All", probe)
    asked = answer.body["spec"]["containers"][0]["resources"]["requests"] if answer.done else {}
    return names.RESOURCE_MILLI in asked


def test_no_queue_is_over_its_limit_while_programs_are_killed(
    plane: ControlPlane, running_kueue: Kueue, installation: Installation
) -> None:
    """Each pod runs at the end, or waits and its event says why. All run once others end."""

    async def run() -> None:
        async with connected(plane.kubeconfig()) as api, asyncio.TaskGroup() as group:
            traffic = Traffic(api, QUEUES, random.Random(7), (8.0, 24.0), _CROWD)
            loop = group.create_task(traffic.run())
            restarting = group.create_task(_restart(installation))
            await _until(lambda: len(traffic.bound) >= _CROWD // 3, "pods are bound")
            await _kill(traffic, running_kueue, installation)
            await _until(lambda: traffic.made - traffic.refused >= _PODS, "all pods came", 600)
            traffic.is_coming, traffic.ends_above = False, inf
            await traffic.come(_SURPLUS * 20)
            await _settle(traffic)
            traffic.ends_above = 0.0
            await _until(lambda: traffic.pods.keys() <= traffic.bound, "all pods are bound", 600)
            say(
                f"{len(traffic.bound)} of {traffic.made - traffic.refused} pods were bound;"
                f" {traffic.refused} were refused while Kueue was down, {len(traffic.reclaimed)}"
                f" were reclaimed; {traffic.looks} looks; {traffic.over} times over a limit with"
                " pods that were being deleted"
            )
            restarting.cancel()
            loop.cancel()

    asyncio.run(run())


async def _kill(traffic: Traffic, kueue: Kueue, installation: Installation) -> None:
    """Kill each program _KILLS times in a random order, with pods that are bound in between."""

    async def kill_kueue() -> None:
        await asyncio.to_thread(kueue.process.kill)
        await asyncio.sleep(chance.uniform(0, 2))
        kueue.restart()

    programs: dict[str, Callable[[], Awaitable[None]]] = {
        "Kueue": kill_kueue,
        "the extender": lambda: asyncio.to_thread(installation.extender.kill),
        "kube-scheduler": lambda: asyncio.to_thread(installation.kube_scheduler.kill),
    }
    chance = random.Random(8)
    order = [*programs] * _KILLS
    chance.shuffle(order)
    for number, name in enumerate(order, 1):
        await asyncio.sleep(chance.uniform(0.5, 3.0))
        looks, traffic.most, begun_s = traffic.looks, 0.0, time.monotonic()
        await programs[name]()
        await traffic.look()
        old = traffic.bound | traffic.pods.keys() - traffic.gated()
        await _until(partial(traffic.bound.__sub__, old), f"{name}: binding goes on")
        seen = f"{traffic.looks - looks} looks, at most {traffic.most:.0%} of a limit"
        say(f"{number}. {name}: {seen}, bound again after {time.monotonic() - begun_s:.1f} s")


async def _settle(traffic: Traffic) -> None:
    """Wait until no more pods start, and those that wait have an event with the reason."""
    gated, since_s = traffic.gated(), time.monotonic()

    def is_steady() -> bool:
        nonlocal gated, since_s
        if gated != traffic.gated():
            gated, since_s = traffic.gated(), time.monotonic()
        return time.monotonic() - since_s >= _STEADY_S

    await _until(is_steady, "no more pods start", 400)
    assert len(gated) >= 20
    assert traffic.pods.keys() - gated <= traffic.bound
    async with asyncio.timeout(_ON_S):
        while traffic.gated() - await traffic.explained():  # noqa: ASYNC110
            await asyncio.sleep(1)
    say(f"at the limits {len(traffic.pods) - len(gated)} pods run, and {len(gated)} wait")


async def _restart(installation: Installation) -> None:
    while True:
        await asyncio.sleep(1)
        await asyncio.to_thread(installation.restart_exited)


async def _until(condition: Callable[[], object], what: str, within_s: float = _ON_S) -> None:
    try:
        async with asyncio.timeout(within_s):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not within {within_s:.0f} s: {what}") from None


def test_while_kueue_is_down_other_namespaces_are_served(
    plane: ControlPlane, running_kueue: Kueue, installation: Installation
) -> None:
    """Pods with a share come, also with a label of a queue, are bound and go. In the namespace with
    the label all new pods are refused, and pods that wait go on waiting. They start after Kueue's
    return."""
    queued = {names.LABEL_KAI_QUEUE: "red-0"}
    with Server(plane) as server:

        def is_bound_at(path: str) -> bool:
            return is_bound(server.get(path))

        def gates(path: str) -> object:
            return server.get(path)["spec"].get("schedulingGates")

        full = [_make(server, PODS, f"full-{each}", labels=queued) for each in range(6)]
        until(lambda: all(map(is_bound_at, full)), "the queue is at its limit of 3 GPUs")
        waits = _make(server, PODS, "waits", labels=queued)
        until(lambda: gates(waits), "a pod waits")
        running_kueue.stop()

        for name, labels in (("free", {}), ("with-a-label", queued)):
            path = _make(server, OTHERS, name, labels=labels)
            until(partial(is_bound_at, path), f"{name} is bound")
            assert server.patch(path, {"metadata": {"annotations": {"changed": "1"}}}).done
            server.ask("DELETE", f"{path}?gracePeriodSeconds=0")
            assert server.ask("GET", path).status == 404

        for name, raw in (
            ("queued", pod(asking(dict(HALF)), name="queued", labels=queued)),
            ("plain", pod(name="plain", scheduler=manifests.STOCK)),
        ):
            answer = server.ask("POST", PODS, raw)
            assert (answer.status, "kueue" in answer.text) == (500, True), (name, answer.text)
        server.ask("DELETE", f"{full[0]}?gracePeriodSeconds=0")
        time.sleep(_STEADY_S)
        assert gates(waits), "no one but Kueue starts a pod"
        assert server.get(full[0])["metadata"]["finalizers"], "Kueue has not released the pod"

        running_kueue.restart()
        running_kueue.wait_ready()
        until(lambda: is_bound_at(waits), "the pod that waited is bound")
        until(lambda: server.ask("GET", full[0]).status == 404, "the deleted pod is gone")


def _make(server: Server, collection: str, name: str, labels: Mapping[str, str]) -> str:
    return server.make(collection, pod(asking(dict(HALF)), name=name, labels=dict(labels)))
