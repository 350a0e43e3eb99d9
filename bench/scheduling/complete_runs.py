"""Complete runs on a real control plane: 1,000 nodes with 40,000 pods, then 4,000 more nodes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from bench.scheduling import fleets, stage
from bench.scheduling.figures import say
from bench.scheduling.throughput import (
    BARE,
    OURS,
    OURS_TENTH,
    OURS_WIDE,
    OURS_ZONE,
    STOCK,
    Runs,
    Throughput,
)
from lab.cluster import manifests
from lab.cluster.api import connected
from lab.cluster.controlplane import ControlPlane
from lab.cluster.installation import Installation

BEFORE_PODS: Final = (
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
)
AFTER_PODS: Final = (manifests.POLICY, manifests.BINDING)
"""Applied last: policies refuse pods that are created with a node."""
PROGRAM: Final = "bench.scheduling.fresh_leases"
_MIB: Final = 1 << 20
_FIRST: Final = (STOCK, BARE, OURS, OURS_TENTH, OURS_ZONE, OURS_WIDE)
_LATER: Final = (STOCK, BARE, OURS, OURS_ZONE) * 3 + (OURS_TENTH,) * 2
"""With more nodes, which are empty."""


@dataclass
class Measured:
    """runs: by number of nodes. nodes, pods: in the extender's state when its memory was read."""

    runs: dict[int, Runs] = field(default_factory=dict)
    nodes: int = 0
    pods: int = 0
    memory_mib: float = 0.0


async def measure(directory: Path, quick: bool) -> Measured:
    """The directory is created, and removed at the end."""
    there = fleets.Size(200, 2_000) if quick else fleets.MIDDLE
    stages = [there.nodes] if quick else [fleets.MIDDLE.nodes, fleets.LARGE.nodes]
    nodes = fleets.Size(stages[-1], 0).shape.all_nodes()
    measured = Measured(pods=there.pods)
    with ControlPlane(directory) as plane:
        plane.install_kinds()
        plane.apply_json(*manifests.objects(*BEFORE_PODS))
        installation = Installation(plane, manifests.configuration(), module=PROGRAM)
        async with connected(plane.kubeconfig()) as kube:
            await stage.build(kube, nodes[: there.nodes])
            await stage.fill(kube, there)
            plane.apply_json(*manifests.in_force(manifests.objects(*AFTER_PODS)))
            begun_s = time.monotonic()
            installation.start_extender()
            try:
                installation.wait_ready()
                say(f"the extender is ready after {time.monotonic() - begun_s:.1f} s")
                pid = installation.extender.pid
                throughput = Throughput(plane, kube, installation)
                for number in stages:
                    await stage.build(kube, nodes[measured.nodes or there.nodes : number])
                    measured.nodes = number
                    say(f"kube-scheduler with us and without, {number:,} nodes")
                    rounds, count = (1, 100) if quick else (3, 600)
                    kinds = _FIRST * rounds if number == stages[0] else _LATER
                    measured.runs[number] = await throughput.measure(count, kinds)
                measured.memory_mib = psutil.Process(pid).memory_info().rss / _MIB
            finally:
                installation.stop()
    return measured
