"""`python -m bench.scheduling.missed NODES PODS PER_S ...`: measures how long a pod waits that fits
on one GPU only, whose node is usually not in kube-scheduler's sample.

All GPUs but one are filled to 60 percent. Pods of 80 percent are created one after the other, and
PER_S small pods each second. There is a run for each PER_S. The time from kube-scheduler's refusal
of a pod, which missed the GPU, to the pod's binding is printed. Options of kube-scheduler may
follow, each with a leading dash.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from bench.scheduling import say, stage
from gpuslice.kube.client import Kube
from lab.cluster import manifests
from lab.cluster.api import connected
from lab.cluster.controlplane import ControlPlane
from lab.cluster.fleet_objects import Node, Shape
from lab.cluster.installation import Installation
from scheduler.core.place import Peak, Placement, Share
from scheduler.kubernetes import binding

FILLED: Final = 60
LARGE: Final = 80
SMALL: Final = 5
_PODS: Final = "/api/v1/namespaces/default/pods"

Json = Mapping[str, Any]


@dataclass
class Times:
    """When each pod was created, refused by kube-scheduler, and bound, in seconds of one clock."""

    created_s: dict[str, float] = field(default_factory=dict)
    missed_s: dict[str, float] = field(default_factory=dict)
    bound_s: dict[str, float] = field(default_factory=dict)

    def waits_s(self) -> Sequence[float]:
        """Return the sorted times from refusal to binding of the pods that were refused."""
        return sorted(self.bound_s[name] - missed_s for name, missed_s in self.missed_s.items())


class Scene:
    """A fleet in which a large pod fits on one GPU only."""

    def __init__(self, plane: ControlPlane, kube: Kube) -> None:
        self._plane = plane
        self._kube = kube
        self._times = Times()
        self._small = 0
        self._bound = asyncio.Event()

    async def fill(self, nodes: Sequence[Node]) -> None:
        """Create one pod per node. It holds a part of each GPU, except for one GPU of the fleet."""
        await stage.build(self._kube, nodes)
        free = nodes[len(nodes) * 2 // 3]
        bodies = [_holding(node, node.gpus[1:] if node is free else node.gpus) for node in nodes]
        await stage.post_all(self._kube, _PODS, bodies)

    async def measure(self, pods: int, per_s: float = 0.0) -> Times:
        """Create large pods one after the other. per_s: number of small pods in each second."""
        self._times = Times()
        listed = await self._kube.get(_PODS)
        watching = asyncio.create_task(self._watch(listed["metadata"]["resourceVersion"]))
        arriving = asyncio.create_task(self._arrive(per_s))
        try:
            for number in range(pods):
                name = f"large-{number}"
                self._bound.clear()
                self._times.created_s[name] = time.monotonic()
                await self._kube.post(_PODS, stage.asking_pod(name, (LARGE,)))
                async with asyncio.timeout(60.0):
                    await self._bound.wait()
                await self._kube.delete(f"{_PODS}/{name}", {"gracePeriodSeconds": 0})
                await asyncio.sleep(0.1)
        finally:
            watching.cancel()
            arriving.cancel()
        return self._times

    async def _arrive(self, per_s: float) -> None:
        while per_s:
            self._small += 1
            await self._kube.post(_PODS, stage.asking_pod(f"small-{self._small}", (SMALL,)))
            await asyncio.sleep(1 / per_s)

    async def _watch(self, since: str) -> None:
        async with aclosing(self._kube.watch(_PODS, since)) as batches:
            async for batch in batches:
                for event in batch:
                    self._observe(event["object"], time.monotonic())

    def _observe(self, pod: Json, now_s: float) -> None:
        name = pod["metadata"].get("name", "")
        if name not in self._times.created_s:
            return
        if any(each.get("status") == "False" for each in pod["status"].get("conditions", ())):
            self._times.missed_s.setdefault(name, now_s)
        if pod["spec"].get("nodeName") and name not in self._times.bound_s:
            self._times.bound_s[name] = now_s
            self._bound.set()


def _holding(node: Node, gpus: Sequence[Any]) -> Json:
    sizes = [(gpu.uuid, gpu.minor, gpu.memory_bytes * FILLED // 100) for gpu in gpus]
    shares = tuple(Share("main-0", *size, FILLED) for size in sizes)
    peaks = tuple(Peak(*size, FILLED, FILLED) for size in sizes)
    body = stage.asking_pod(f"holds-{node.name}", (FILLED,))
    annotations = binding.annotations_of(Placement(node.name, shares, peaks))
    body["metadata"]["annotations"] = dict(annotations)
    body["spec"]["nodeName"] = node.name
    return body


@asynccontextmanager
async def scene(plane: ControlPlane, nodes: int, *options: str) -> AsyncIterator[Scene]:
    """Make the fleet, and run the scheduler. options: additional flags of kube-scheduler."""
    configuration = manifests.configuration()
    installation = Installation(plane, configuration, module=stage.PROGRAM, options=options)
    async with connected(plane.kubeconfig()) as kube:
        made = Scene(plane, kube)
        await made.fill(Shape(nodes=nodes, gpus=2).all_nodes())
        plane.apply_json(*manifests.in_force(manifests.objects(*stage.AFTER_PODS)))
        with installation:
            await asyncio.to_thread(installation.wait_binds)
            yield made


async def _main(nodes: int, pods: int, rates: Sequence[float], options: Sequence[str]) -> None:
    with stage.control_plane() as plane:
        async with scene(plane, nodes, *options) as made:
            for per_s in rates:
                waits_s = (await made.measure(pods, per_s)).waits_s()
                last = len(waits_s) - 1
                p50, p90, p99 = (waits_s[last * each // 100] for each in (50, 90, 99))
                say(
                    f"{nodes:,} nodes, {per_s:.0f} small pods a second: {len(waits_s)} of {pods}"
                    f" pods missed; from miss to binding p50 {p50:.2f}, p90 {p90:.2f},"
                    f" p99 {p99:.2f}, max {waits_s[-1]:.2f} s"
                )


if __name__ == "__main__":
    _nodes, _pods, *_rest = sys.argv[1:]
    _options = [each for each in _rest if each.startswith("-")]
    _rates = [float(each) for each in _rest if each not in _options]
    asyncio.run(_main(int(_nodes), int(_pods), _rates, _options))
