"""`python -m bench.scheduling.filling NODES`: fills a fleet to 70 percent, and counts used GPUs.

kube-scheduler first runs as the chart configures it, and scores a sample of the nodes. Then it runs
with `percentageOfNodesToScore: 100`. Each time it places the same pods, which request different
fractions of a GPU, on an empty fleet.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Iterator
from typing import Any, Final

from bench.scheduling import say, stage
from gpuslice.contract import names
from lab.cluster import manifests
from lab.cluster.api import TIMEOUT_S, connected
from lab.cluster.fleet_objects import Shape
from lab.cluster.installation import Installation

_GPUS: Final = 2
"""The number of GPUs of each node."""
_PERCENTS: Final = (10, 20, 25, 30, 40, 50, 60, 75)
_PODS: Final = "/api/v1/namespaces/default/pods"


def _asking(nodes: int) -> Iterator[dict[str, Any]]:
    chance = random.Random(nodes)
    left = nodes * _GPUS * 0.7 * 100
    number = 0
    while (percent := chance.choice(_PERCENTS)) <= left:
        yield stage.asking_pod(f"p{number}", (percent,))
        left -= percent
        number += 1


async def _touched(nodes: int, **changes: object) -> int:
    """Return the number of GPUs that hold a pod, after kube-scheduler has placed all. changes: of
    its configuration."""
    configuration = {**manifests.configuration(), **changes}
    pods = list(_asking(nodes))
    with stage.control_plane() as plane:
        async with connected(plane.kubeconfig()) as kube:
            await stage.build(kube, Shape(nodes, _GPUS).all_nodes())
            since = (await kube.get(_PODS, limit=1))["metadata"]["resourceVersion"]
            with Installation(plane, configuration, module=stage.PROGRAM) as installation:
                await asyncio.to_thread(installation.wait_binds)
                await stage.post_all(kube, _PODS, pods)
                await stage.bound_at(kube, "default", len(pods), since)
            placed = (await kube.get(_PODS, timeout_s=TIMEOUT_S))["items"]
    allocated = [
        pod["metadata"]["annotations"][names.ANNOTATION_DEVICE_ALLOCATED] for pod in placed
    ]
    return len({gpu["id"] for text in allocated for gpu in json.loads(text)["gpu"]})


async def _main(nodes: int) -> None:
    sampled = await _touched(nodes)
    say(f"{nodes:,} nodes of {_GPUS} GPUs, {len(list(_asking(nodes))):,} pods: {sampled:,} GPUs")
    whole = await _touched(nodes, percentageOfNodesToScore=100)
    say(f"{whole:,} GPUs where all nodes are scored: {sampled / whole - 1:+.1%}")


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1])))
