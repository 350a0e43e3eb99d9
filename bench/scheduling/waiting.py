"""`python -m bench.scheduling.waiting WAITING PER_S [KEY=VALUE ...]`: measures how long a small pod
waits for its binding while WAITING refused pods are pending.

100 nodes have 8 GPUs each, of which 60 percent are held. The waiting pods request 50 percent of a
GPU: the totals of a node have room for them, and no GPU has. PER_S small pods arrive each second at
a fixed rate, and are deleted when they are bound. Each deletion makes kube-scheduler retry the
waiting pods. The waits are printed for each half minute. KEY=VALUE changes kube-scheduler's
configuration, for example podMaxBackoffSeconds=10.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Final

from bench.scheduling import fleets, say, stage
from gpuslice.kube.client import Kube
from lab.cluster import manifests
from lab.cluster.api import connected
from lab.cluster.fleet_objects import Shape, gpu_uuid
from lab.cluster.installation import Installation

FILLED: Final = 60
LARGE: Final = 50
SMALL: Final = 10
WINDOWS: Final = 6
WINDOW_S: Final = 30.0
_GPUS: Final = 8
_NODES: Final = 100
_PODS: Final = "/api/v1/namespaces/default/pods"
_POLL_S: Final = 0.02


async def _wait_s(kube: Kube, name: str) -> float:
    """Create a small pod, wait until it is bound, and delete it. Return the time to its binding."""
    began_s = time.monotonic()
    await kube.post(_PODS, stage.asking_pod(name, (SMALL,)))
    while True:
        found = await kube.get(f"{_PODS}/{name}")
        if found["spec"].get("nodeName"):
            break
        await asyncio.sleep(_POLL_S)
    wait_s = time.monotonic() - began_s
    await kube.delete(f"{_PODS}/{name}", {"gracePeriodSeconds": 0})
    return wait_s


async def _window(kube: Kube, number: int, per_s: float) -> Sequence[float]:
    """Return the sorted waits of the pods that arrive within one window."""
    async with asyncio.TaskGroup() as group:
        waits = []
        for pod in range(round(per_s * WINDOW_S)):
            waits.append(group.create_task(_wait_s(kube, f"small-{number}-{pod}")))
            await asyncio.sleep(1 / per_s)
    return sorted(each.result() for each in waits)


async def _main(waiting: int, per_s: float, changes: Mapping[str, int]) -> None:
    shape = Shape(nodes=_NODES, gpus=_GPUS, memory_bytes=fleets.GPU_BYTES)
    held = [
        stage.bound_pod(f"held-{number}-{gpu}", node, gpu_uuid(number, gpu), gpu, FILLED)
        for number, node in enumerate(shape.node_names())
        for gpu in range(_GPUS)
    ]
    configuration = {**manifests.configuration(), **changes}
    with stage.control_plane() as plane:
        async with connected(plane.kubeconfig()) as kube:
            await stage.build(kube, shape.all_nodes())
            await stage.post_all(kube, _PODS, held)
            with Installation(plane, configuration, module=stage.PROGRAM) as installation:
                await asyncio.to_thread(installation.wait_binds)
                large = (stage.asking_pod(f"large-{n}", (LARGE,)) for n in range(waiting))
                await stage.post_all(kube, _PODS, large)
                for number in range(WINDOWS):
                    waits_s = await _window(kube, number, per_s)
                    last = len(waits_s) - 1
                    p50, p90 = (waits_s[last * each // 100] for each in (50, 90))
                    most = waits_s[-1]
                    say(f"{waiting:,} waiting: p50 {p50:.2f}, p90 {p90:.2f}, max {most:.2f} s")


if __name__ == "__main__":
    _parser = argparse.ArgumentParser(prog="python -m bench.scheduling.waiting")
    _parser.add_argument("waiting", type=int, help="refused pods that wait, for example 1000")
    _parser.add_argument("per_s", type=float, help="small pods per second, for example 4")
    _parser.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="of the configuration")
    _options = _parser.parse_args()
    _pairs = (each.split("=") for each in _options.changes)
    _values = {key: int(value) for key, value in _pairs}
    asyncio.run(_main(_options.waiting, _options.per_s, _values))
