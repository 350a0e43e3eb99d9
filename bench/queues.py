"""Measures Kueue with gpuslice beside Kueue with stock kube-scheduler: the time until all pods in
20 queues are bound, and the writes to the API server.

With gpuslice, the pods have shares and KAI's labels, and the queues are KAI's. Otherwise the pods
request the resource that Kueue counts, nodes report it, and Kueue's objects exist from the start.
Each run has a control plane of its own. The runs of the two kinds alternate.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from bench import Result
from bench.scheduling import cpu_s, say, stage
from bench.scheduling.fleets import ASKED, GPUS, Size
from bench.scheduling.throughput import OURS, STOCK, stock_config
from gpuslice.contract import names
from gpuslice.kube.client import Kube
from lab.cluster import manifests
from lab.cluster.api import connected, each
from lab.cluster.controlplane import ControlPlane, Serving
from lab.cluster.fleet_objects import Node, node_json
from lab.cluster.installation import Installation
from lab.cluster.kueue import USERS, Kueue
from scheduler.queues import kueue, tree

_NAMESPACE: Final = "team"
_PODS: Final = f"/api/v1/namespaces/{_NAMESPACE}/pods"
_WARM: Final = "/api/v1/namespaces/default/pods"
_CHART: Final = (
    "--set=queues.enabled=true",
    "--set=global.gpuSharing=true",
    "--api-versions=admissionregistration.k8s.io/v1/MutatingAdmissionPolicy",
)
_INNER: Final = 4
_LEAVES: Final = 20
_READY_S: Final = 120.0
_GOAL: Final = 1.2


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of one run. created_s, bound_s: the time until the last pod was created, and
    bound. spent_s: the processor time of each program. writes: by request."""

    created_s: float
    bound_s: float
    spent_s: Mapping[str, float]
    writes: Counter[str]


def run(quick: bool) -> Result:
    result = Result(("", STOCK, OURS))
    measure(result, Size(3, 100) if quick else Size(25, 1_000), 1 if quick else 3)
    return result


def measure(result: Result, size: Size, rounds: int) -> None:
    """Add the figures of these rounds, each with both kinds."""
    runs: dict[str, list[Run]] = {STOCK: [], OURS: []}
    for kind in (STOCK, OURS) * rounds:
        begun = os.getloadavg()[0]
        runs[kind].append(one := measured(kind, size))
        spent = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in one.spent_s.items())
        say(
            f"{kind}: {size.pods} pods created in {one.created_s:.1f} s, bound in"
            f" {one.bound_s:.1f} s; processor time: {spent}; load before: {begun:.1f}"
        )
    medians = {kind: median(each.bound_s for each in runs[kind]) for kind in runs}
    for kind in runs:
        result.add(f"bound_{kind.replace(' ', '_')}_s", medians[kind])
    result.row("all bound", *(f"{medians[kind]:.1f} s" for kind in runs))
    result.add("with_us_per_stock", medians[OURS] / medians[STOCK], at_most=_GOAL)
    totals = {kind: sum((each.writes for each in runs[kind]), Counter[str]()) for kind in runs}
    for what in sorted(totals[STOCK].keys() | totals[OURS].keys()):
        parts = [totals[kind][what] / rounds / size.pods for kind in runs]
        if max(parts) >= 0.005:
            result.row(what, *(f"{part:.2f}" for part in parts))
    for kind in runs:
        each_pod = totals[kind].total() / rounds / size.pods
        result.add(f"writes_{kind.replace(' ', '_')}_per_pod", each_pod)


def measured(kind: str, size: Size) -> Run:
    with (
        TemporaryDirectory(prefix="gpuslice-bench-") as directory,
        ControlPlane(Path(directory) / "plane", Serving(users=USERS)) as plane,
    ):
        labels = {names.LABEL_QUEUES: "true"}
        namespace = {"metadata": {"name": _NAMESPACE, "labels": labels}}
        plane.apply_json({"apiVersion": "v1", "kind": "Namespace", **namespace})
        begin = _with_us if kind == OURS else _stock
        with Kueue(plane) as engine, begin(plane, size) as pids:
            pids |= {
                "kube-apiserver": plane.apiserver.pid,
                "etcd": plane.etcd.pid,
                "Kueue": engine.process.pid,
            }
            return asyncio.run(_measure(plane, kind, size, pids))


async def _measure(plane: ControlPlane, kind: str, size: Size, pids: Mapping[str, int]) -> Run:
    pods = [_pod(kind, number) for number in range(size.pods)]
    async with connected(plane.kubeconfig()) as kube:
        await _warm_up(kube, kind)
        since = (await kube.get(_PODS, limit=1))["metadata"]["resourceVersion"]
        bound = asyncio.create_task(stage.bound_at(kube, _NAMESPACE, size.pods, since))
        before = stage.writes(plane)
        spent_s = {name: cpu_s(pid) for name, pid in pids.items()}
        begun_s = time.monotonic()
        await stage.post_all(kube, _PODS, pods)
        created_s = time.monotonic() - begun_s
        bound_s = (await bound)[-1] - begun_s
        spent_s = {name: cpu_s(pid) - spent_s[name] for name, pid in pids.items()}
        # Events and the status of Queues are written a little later.
        await asyncio.sleep(5)
        return Run(created_s, bound_s, spent_s, stage.writes(plane) - before)


async def _warm_up(kube: Kube, kind: str) -> None:
    """Wait until a pod outside the queues is bound and a pod in a queue would be counted."""
    probe, outside = _pod(kind, 0), _pod(kind, 0)
    del outside["metadata"]["labels"][_label(kind)]
    await kube.post(_WARM, outside)
    async with asyncio.timeout(_READY_S):
        while True:
            raw = await kube.get(f"{_WARM}/{outside['metadata']['name']}")
            dry = await kube.post(_PODS, probe, dryRun="All")
            if raw["spec"].get("nodeName") and names.RESOURCE_MILLI in json.dumps(dry):
                break
            await asyncio.sleep(0.2)
    # The pods fill all GPUs, so this one must be gone.
    await kube.delete(f"{_WARM}/{outside['metadata']['name']}", {"gracePeriodSeconds": 0})
    await asyncio.sleep(2)  # the programs are idle again


# --- the two kinds


@contextmanager
def _stock(plane: ControlPlane, size: Size) -> Iterator[dict[str, int]]:
    """Run kube-scheduler, with nodes that report the resource and Kueue's objects."""
    capacity = size.nodes * GPUS * tree.MILLI
    queues = tree.build(_queues(size))
    kueue.divide(queues, capacity)
    wanted = [(_NAMESPACE, name) for name, each in queues.items() if each.is_leaf]
    plane.apply_json(*kueue.objects(queues, wanted))
    asyncio.run(_build(plane, size))
    ours = plane.directory / "ours.yaml"
    ours.write_text(
        json.dumps({**manifests.configuration(), "leaderElection": {"leaderElect": False}})
    )
    config = stock_config(ours, plane.directory / "stock.yaml")
    yield {"kube-scheduler": plane.start_kube_scheduler(config).pid}


async def _build(plane: ControlPlane, size: Size) -> None:
    async def create(node: Node) -> None:
        raw = node_json(node)
        raw["status"]["allocatable"][names.RESOURCE_MILLI] = str(len(node.gpus) * tree.MILLI)
        await kube.post("/api/v1/nodes", raw)

    async with connected(plane.kubeconfig()) as kube:
        await each(size.shape.all_nodes(), create)


@contextmanager
def _with_us(plane: ControlPlane, size: Size) -> Iterator[dict[str, int]]:
    """Run gpuslice's scheduler with queues, on nodes with GPUs."""
    plane.install_kinds()
    plane.apply_json(*manifests.serving([names.SCHEDULER_NAME], *_CHART))

    async def build() -> None:
        async with connected(plane.kubeconfig()) as kube:
            await stage.build(kube, size.shape.all_nodes())
            await stage.post_all(kube, f"/apis/{tree.API_VERSION}/{tree.PLURAL}", _queues(size))

    asyncio.run(build())
    configuration, options = manifests.configuration(), ("--queues", "--dialects=koordinator,kai")
    with Installation(plane, configuration, module=stage.PROGRAM, arguments=options) as started:
        started.wait_binds()
        deadline_s = time.monotonic() + _READY_S
        while len(plane.kubectl("get", "clusterqueues", "-o=name").split()) < _LEAVES:
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"not all queues are served within {_READY_S:.0f} s")
            time.sleep(0.5)
        yield {"kube-scheduler": started.kube_scheduler.pid, "the extender": started.extender.pid}


def _queues(size: Size) -> list[dict[str, Any]]:
    """Return KAI's Queues on three levels. The leaves' quotas add up to the cluster."""
    quota = size.nodes * GPUS / _LEAVES
    inner = [_queue(f"group-{number}", "all", quota * _LEAVES / _INNER) for number in range(_INNER)]
    leaves = [_queue(f"leaf-{n}", f"group-{n % _INNER}", quota) for n in range(_LEAVES)]
    return [_queue("all", "", quota * _LEAVES), *inner, *leaves]


def _queue(name: str, parent: str, quota: float) -> dict[str, Any]:
    unlimited = {"quota": -1, "limit": -1, "overQuotaWeight": 1}
    resources = {"gpu": {**unlimited, "quota": quota}, "cpu": unlimited, "memory": unlimited}
    return {
        "apiVersion": tree.API_VERSION,
        "kind": "Queue",
        "metadata": {"name": name},
        "spec": {"parentQueue": parent, "resources": resources},
    }


def _label(kind: str) -> str:
    return names.LABEL_KAI_QUEUE if kind == OURS else names.LABEL_KUEUE_QUEUE


def _pod(kind: str, number: int) -> dict[str, Any]:
    raw = stage.asking_pod(f"p{number}", (ASKED,))
    raw["metadata"]["labels"][_label(kind)] = f"leaf-{number % _LEAVES}"
    if kind == STOCK:
        milli = str(ASKED * tree.MILLI // 100)
        asked = {"cpu": "10m", "memory": "10Mi", names.RESOURCE_MILLI: milli}
        raw["spec"]["containers"][0]["resources"] = {"requests": asked, "limits": asked}
    return raw
