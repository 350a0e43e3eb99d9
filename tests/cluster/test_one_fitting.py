"""One GPU of eight thousand has free capacity: kube-scheduler must not end its search before it is
found."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from contract import names
from lab.cluster.api import Api, each
from lab.cluster.controlplane import ControlPlane
from lab.cluster.fleet import Fleet
from lab.cluster.fleet_objects import Node, Shape
from lab.cluster.installation import Installation
from scheduler.core.place import Peak, Placement, Share
from scheduler.kubernetes import binding
from tests.cluster.admission.requested import asking, pod
from tests.cluster.installing import install
from tests.cluster.running import running
from tests.support import until

pytestmark = pytest.mark.cluster

TIMES = 20
SHAPE = Shape(nodes=1000)
FREE = (617, 5)
"""The node's number and the GPU's minor of the only unallocated GPU."""
_DEADLINE_S = 60.0


def test_the_only_gpu_with_free_capacity_is_found_at_once_each_time(
    own_plane: ControlPlane,
) -> None:
    own_plane.install_kinds()
    with Fleet(own_plane, SHAPE.all_nodes()) as fleet:
        asyncio.run(_fill(own_plane, list(fleet.nodes.values())))
        # Applied only now, because the policies refuse pods that are created with a node.
        install(own_plane)
        name = SHAPE.node_names()[FREE[0]]
        tries = []
        with running(own_plane) as ours:
            for number in range(TIMES):
                tries.append(asyncio.run(_one(own_plane, number)))
                until(lambda: _shows_no_pod(ours, name), "the extender received the deletion")
    assert tries == [(name, [])] * TIMES


def _shows_no_pod(ours: Installation, node: str) -> bool:
    return "/asks-" not in ours.ask(f"/debug/fleet?node={node}")[1]


async def _fill(plane: ControlPlane, nodes: list[Node]) -> None:
    """One pod per node that holds all of its GPUs, except for one GPU."""
    async with Api(plane) as api:

        async def make(number: int) -> None:
            node = nodes[number]
            gpus = [gpu for gpu in node.gpus if (number, gpu.minor) != FREE]
            sizes = [(gpu.uuid, gpu.minor, gpu.memory_bytes) for gpu in gpus]
            shares = tuple(Share("main", *size, 100) for size in sizes)
            peaks = tuple(Peak(*size, 100, 100) for size in sizes)
            full = pod(asking({names.RESOURCE_GPU: 100 * len(gpus)}), name=f"full-{number}")
            placement = Placement(node.name, shares, peaks)
            full["metadata"]["annotations"] = dict(binding.annotations_of(placement))
            full["spec"]["nodeName"] = node.name
            await api.ask("POST", "/api/v1/namespaces/default/pods", full)

        await each(range(len(nodes)), make)


async def _one(plane: ControlPlane, number: int) -> tuple[str, list[str]]:
    """The node of a pod that fits on one GPU only, and kube-scheduler's earlier messages for it."""
    path = f"/api/v1/namespaces/default/pods/asks-{number}"
    async with Api(plane) as api:
        asks = asking({names.RESOURCE_CORE: 60, names.RESOURCE_MEMORY_RATIO: 60})
        made = pod(asks, name=f"asks-{number}")
        await api.ask("POST", "/api/v1/namespaces/default/pods", made)
        deadline = time.monotonic() + _DEADLINE_S
        while True:
            seen = await api.ask("GET", path)
            refused = _refusals(seen)
            if seen["spec"].get("nodeName") or refused or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.05)
        await api.ask("DELETE", path, {"gracePeriodSeconds": 0})
        return seen["spec"].get("nodeName", ""), refused


def _refusals(seen: dict[str, Any]) -> list[str]:
    """kube-scheduler writes one onto each pod that it could not place at the first try."""
    conditions = seen["status"].get("conditions", ())
    return [json.dumps(each) for each in conditions if each["status"] == "False"]
