"""Measures kube-scheduler with the extender, and stock kube-scheduler with and without claims.

The runs alternate. kube-controller-manager makes the claims in the measured time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final

from bench import Result
from bench.scheduling import fleets, stage
from bench.scheduling.throughput import CLAIMS, OURS, STOCK, Throughput
from lab.cluster import manifests
from lab.cluster.api import connected
from lab.cluster.controlplane import ControlPlane
from lab.cluster.fleet_objects import slice_json
from lab.cluster.installation import Installation
from lab.cluster.supervised import Process

_SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"
_KINDS: Final = (OURS, CLAIMS, STOCK)
_QPS: Final = 1000


def run(quick: bool) -> Result:
    return asyncio.run(_measure(50, *((1, 100) if quick else (3, 300))))


async def _measure(nodes: int, rounds: int, count: int) -> Result:
    result = Result(("", "pods/s", "processor time, ms per pod", "writes per pod"))
    with stage.control_plane() as plane, _manager(plane) as manager:
        plane.apply_json(*manifests.objects("DeviceClass"))
        installation = Installation(plane, manifests.configuration(), module=stage.PROGRAM)
        async with connected(plane.kubeconfig()) as kube:
            made = fleets.Size(nodes, 0).shape.all_nodes()
            await stage.build(kube, made)
            await stage.post_all(kube, _SLICES, map(slice_json, made))
            installation.start_extender()
            try:
                installation.wait_ready()
                throughput = Throughput(plane, kube, installation, manager)
                runs = await throughput.measure(count, _KINDS * rounds)
            finally:
                installation.stop()
    for kind in _KINDS:
        name = kind.replace(" ", "_")
        programs = {program: median(spent) for program, spent in runs.spent_ms[kind].items()}
        ours = sum(spent for program, spent in programs.items() if program != "the bench")
        writes = sum(runs.writes[kind].values()) / runs.bound[kind] - 1
        result.add(f"{name}_pods_per_s", runs.median(kind))
        result.add(f"{name}_ms_per_pod", ours)
        result.add(f"{name}_writes_per_pod", writes)
        for program, spent in programs.items():
            result.add(f"{name}_{program.replace(' ', '_')}_ms_per_pod", spent)
        result.row(kind, f"{runs.median(kind):.0f}", f"{ours:.1f}", f"{writes:.1f}")
    return result


@contextmanager
def _manager(plane: ControlPlane) -> Iterator[Process]:
    """Run kube-controller-manager, which makes and removes claims."""
    command: list[str | Path] = [
        *(plane.programs.kube_controller_manager, "--leader-elect=false", "--secure-port=0"),
        f"--kubeconfig={plane.kubeconfig()}",
        "--controllers=resourceclaim-controller",
        *(f"--kube-api-qps={_QPS}", f"--kube-api-burst={2 * _QPS}"),
    ]
    process = Process(command, plane.directory / "kube-controller-manager.log", plane.environ())
    try:
        yield process
    finally:
        process.kill()
