"""Makes a fleet in use on a real API server: nodes with GPUs, and pods that hold shares of them.

No agent renews a Lease, so that the API server works for scheduling alone. Therefore the extender
gets a longer timeout for Leases (fresh_leases.py). The first nodes have equal numbers of pods.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.scheduling import fleets, say
from gpuslice.contract import names
from gpuslice.kube.client import METADATA_ONLY, Kube
from gpuslice.kube.errors import KubeError
from lab.cluster import manifests
from lab.cluster.api import TIMEOUT_S, each
from lab.cluster.controlplane import ControlPlane
from lab.cluster.fleet import create
from lab.cluster.fleet_objects import Node, gpu_uuid
from scheduler.claims import templates
from scheduler.core.place import Peak, Placement, Share
from scheduler.kubernetes import binding

Json = Mapping[str, Any]

BEFORE_PODS: Final = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
AFTER_PODS: Final = (manifests.POLICY, manifests.BINDING)
"""The kinds that are applied after the pods: these policies refuse pods created with a node."""
PROGRAM: Final = "bench.scheduling.fresh_leases"
_WRITE: Final = re.compile(r"apiserver_request_total\{([^}]*)\} ([\d.e+]+)")
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
_READS: Final = frozenset({"GET", "LIST", "WATCH", "CONNECT"})


@contextmanager
def control_plane() -> Iterator[ControlPlane]:
    """Run a control plane with gpuslice's objects, without the policies."""
    with (
        tempfile.TemporaryDirectory(prefix="gpuslice-bench-") as directory,
        ControlPlane(Path(directory) / "plane") as plane,
    ):
        plane.install_kinds()
        plane.apply_json(*manifests.objects(*BEFORE_PODS))
        yield plane


async def post_all(kube: Kube, path: str, bodies: Iterable[Json]) -> None:
    """Post all bodies, many at a time."""

    async def post(body: Json) -> None:
        await kube.post(path, body, timeout_s=TIMEOUT_S)

    await each(bodies, post)


async def delete_all(kube: Kube, path: str) -> None:
    """Delete all pods at the path. The API server deletes one after another and ends a request
    after its timeout, which 3,000 pods can exceed, so the request is repeated."""
    for tries_left in reversed(range(10)):
        try:
            await kube.delete(path, {"gracePeriodSeconds": 0}, timeout_s=TIMEOUT_S)
            return
        except KubeError as error:
            if not tries_left or error.status not in (0, 504):
                raise


async def build(kube: Kube, nodes: Sequence[Node]) -> None:
    begun_s = time.monotonic()
    await each(nodes, partial(create, kube))
    if nodes:
        say(f"{len(nodes):,} nodes are there ({time.monotonic() - begun_s:.0f} s)")


async def fill(kube: Kube, size: fleets.Size) -> None:
    """Create the existing pods, which have a node from the start."""
    namespace = "there"
    await kube.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
    begun_s = time.monotonic()
    node_names = size.shape.node_names()
    bodies = (
        bound_pod(f"p{number}", node_names[node], gpu_uuid(node, minor), minor, percent)
        for number, (node, minor, percent) in enumerate(fleets.held(size))
    )
    await post_all(kube, f"/api/v1/namespaces/{namespace}/pods", bodies)
    say(f"{size.pods:,} pods are there ({time.monotonic() - begun_s:.0f} s)")


def bound_pod(name: str, node: str, uuid: str, minor: int, percent: int) -> Json:
    """Return a pod that holds a part of a GPU of the node."""
    size_bytes = fleets.GPU_BYTES * percent // 100
    share = Share("main-0", uuid, minor, size_bytes, percent)
    peak = Peak(uuid, minor, size_bytes, percent, percent)
    body = asking_pod(name, (percent,))
    body["metadata"]["annotations"] = dict(
        binding.annotations_of(Placement(node, (share,), (peak,)))
    )
    body["spec"]["nodeName"] = node
    return body


def asking_pod(name: str, percents: Sequence[int]) -> dict[str, Any]:
    """Return a pod. percents: what each container requests of a GPU's memory and core."""
    return {
        "metadata": {
            "name": name,
            "labels": {names.LABEL_ISOLATION_PROVIDER: names.ISOLATION_PROVIDER},
        },
        "spec": {
            "schedulerName": names.SCHEDULER_NAME,
            "automountServiceAccountToken": False,
            "containers": [_asking(f"main-{at}", each) for at, each in enumerate(percents)],
        },
    }


def template() -> Json:
    """Return the template that the controller makes for claiming_pod's request."""
    name = f"gpuslice-c{fleets.ASKED}-r{fleets.ASKED}"
    made = templates.template(name, [fleets.GPU_BYTES // names.CAPACITY_MEMORY_STEP])
    assert made is not None
    return made


def claiming_pod(name: str) -> dict[str, Any]:
    """Return a pod whose request the chart's policy has moved into a claim."""
    container = {
        "name": "main-0",
        "image": "busybox",
        "resources": {"requests": {"cpu": "10m", "memory": "10Mi"}, "claims": [{"name": "main-0"}]},
    }
    claim = {"name": "main-0", "resourceClaimTemplateName": template()["metadata"]["name"]}
    spec = {
        "schedulerName": names.SCHEDULER_NAME,
        "automountServiceAccountToken": False,
        "resourceClaims": [claim],
        "containers": [container],
    }
    return {"metadata": {"name": name}, "spec": spec}


def _asking(name: str, percent: int) -> Json:
    asked = {
        "cpu": "10m",
        "memory": "10Mi",
        names.RESOURCE_SHARED: "1",
        names.RESOURCE_CORE: str(percent),
        names.RESOURCE_MEMORY_RATIO: str(percent),
    }
    return {"name": name, "image": "busybox", "resources": {"requests": asked, "limits": asked}}


async def bound_at(kube: Kube, namespace: str, count: int, since: str) -> Sequence[float]:
    """Return the time of the local clock at which each of `count` pods of the namespace was bound.
    since: the resourceVersion from which to watch."""
    path, times = f"/api/v1/namespaces/{namespace}/pods", list[float]()
    asked = {"fieldSelector": "spec.nodeName!="}
    async with asyncio.timeout(1800.0):
        while len(times) < count:
            # The server may end a watch at any time, so start another one.
            watch = kube.watch(path, since, only=METADATA_ONLY, **asked)
            async with aclosing(watch) as batches:
                async for batch in batches:
                    now_s = time.monotonic()
                    times += [now_s for event in batch if event["type"] == "ADDED"]
                    if batch:
                        since = batch[-1]["object"]["metadata"]["resourceVersion"]
                    if len(times) >= count:
                        break
    return times


def writes(plane: ControlPlane) -> Counter[str]:
    """Return how many writing requests the API server has received, by kind."""
    counted = Counter[str]()
    for line in _WRITE.finditer(plane.kubectl("get", "--raw", "/metrics")):
        labels = dict(_LABEL.findall(line[1]))
        if labels["verb"] not in _READS:
            what = "/".join(filter(None, (labels["resource"], labels["subresource"])))
            counted[f"{labels['verb']} {what}"] += int(float(line[2]))
    return counted
