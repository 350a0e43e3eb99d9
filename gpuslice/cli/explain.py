"""`gpuslice explain`: reads the pod and what concerns it, with the user's rights only."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from gpuslice.cli import claim_states, claims, cluster, connecting, queue_state
from gpuslice.cli.explanation import ALL_DIALECTS, Facts, explain, time_of
from gpuslice.cli.first_lists import CLAIMS, LIVE_PODS, OUR_SLICES, SLICES
from gpuslice.cli.live import Reader
from gpuslice.contract import names
from gpuslice.kube.access import Access
from gpuslice.kube.client import Kube
from gpuslice.kube.errors import FORBIDDEN, NOT_FOUND, KubeError
from gpuslice.kube.fields import Json, at, texts
from scheduler import cache
from scheduler.decisions.simulate import SimulationError, fleet, nearest, simulate
from scheduler.kubernetes.leases import agent_lease
from scheduler.kubernetes.requests import pod_path
from scheduler.queues import figures
from scheduler.queues.tree import QUEUES
from scheduler.simulate_command import KINDS

_DESCRIPTION: Final = """\
Say why a pod waits, was refused or is slow. The last line says what to do.

It reads the pod, its Events, all pods, the Nodes, their Devices and the agents' Leases, and of a
running pod the metrics of its node's agent. For a pod in a queue it reads all queues and Kueue's
Workloads, and for a pod with claims all ResourceSlices and ResourceClaims. Without a right it says
which, and shows the rest. The ClusterRole and the Role gpuslice-viewer have them all.
"""
_SAMPLED_S: Final = 1.0
"""The time for which waiting launches are observed."""
_FAILED_CREATE: Final = "FailedCreate"
"""The reason of the Event of a workload whose pod the API server refuses."""


def main(arguments: Sequence[str], prog: str) -> int:
    about = "the pod's (default: the context's, or default)"
    parser = connecting.parser(prog, "explain", _DESCRIPTION, about)
    parser.add_argument("pod", metavar="POD", help="a pod, its workload, or a Job that waits")
    return connecting.run(_run, parser.parse_args(arguments), failed=2)


def _run(chosen: argparse.Namespace, access: Access) -> int:
    facts = asyncio.run(_read(chosen, access))
    sys.stdout.writelines(f"{line}\n" for line in explain(facts))
    return int(facts.pod is None)


async def _read(chosen: argparse.Namespace, access: Access) -> Facts:
    namespace = chosen.namespace or access.namespace or "default"
    async with connecting.connect(chosen, access) as kube:
        return await read(kube, namespace, chosen.pod.removeprefix("job/"), time.time())


async def read(kube: Kube, namespace: str, name: str, now_s: float) -> Facts:
    """Read what explains the pod. Raises KubeError, but not for a missing right."""
    missing: list[str] = []
    pod: Json | None = None
    try:
        pod = await kube.get(pod_path(namespace, name))
    except KubeError as error:
        if error.status != NOT_FOUND:
            raise
    job = await _suspended(kube, namespace, name) if pod is None else None
    pod = pod or job
    about = f"regarding.kind=Pod,regarding.name={name}" if pod else f"reason={_FAILED_CREATE}"
    path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
    events = await _list(kube, path, missing, about) or ()
    if pod is None:
        pods = await _list(kube, f"/api/v1/namespaces/{namespace}/pods", missing) or ()
        found = [texts(each, "metadata") for each in pods]
        created = {
            each["name"]: each.get("creationTimestamp", "")
            for each in found
            if each.get("name", "").startswith(f"{name}-")
        }
        latest = _latest_first(events, "")
        return Facts(namespace, name, None, latest, created=created, missing=missing)
    live = {cache.PODS: LIVE_PODS}
    listed = {path: await _list(kube, path, missing, live.get(path, "")) for path in KINDS}
    if claims.named(pod):
        listed[SLICES] = await _list(kube, SLICES, missing, OUR_SLICES)
        listed[CLAIMS] = await _list(kube, CLAIMS, missing)
    leases = filter(None, map(agent_lease, listed[cache.LEASES] or ()))
    facts = Facts(
        namespace,
        name,
        pod,
        _latest_first(events, str(at(pod, "metadata").get("uid", ""))),
        gpus=await _gpus(kube, pod, listed, missing),
        unready={each.name: each.not_ready for each in leases if each.not_ready},
        place=await _place(kube, pod, missing),
        claims=claim_states.states(pod, listed.get(CLAIMS, ())),
        missing=missing,
        kind="job" if job else "pod",
    )
    # Without Leases, every agent counts as ready. Without the others, no placement is known.
    if any(items is None for path, items in listed.items() if path != cache.LEASES):
        return facts
    objects = [{**i, "kind": kind} for path, kind in KINDS.items() for i in listed[path] or ()]
    return _placed(facts, objects, now_s)


def _placed(facts: Facts, objects: Sequence[Json], now_s: float) -> Facts:
    """Add what the scheduler would decide now."""
    assert facts.pod is not None
    try:
        state = fleet(objects, now_s)
    except SimulationError:
        return facts
    near = nearest(state, facts.pod, ALL_DIALECTS)
    account = simulate(state, facts.pod, enabled=ALL_DIALECTS)
    return replace(facts, account=account, nearest=near)


async def _gpus(
    kube: Kube, pod: Json, listed: Mapping[str, Sequence[Json] | None], missing: list[str]
) -> Sequence[cluster.Gpu]:
    """Return the GPUs of the pod's node. If the pod runs, their use is measured for _SAMPLED_S."""
    name, reader = at(pod, "spec").get("nodeName"), Reader(kube)
    kinds = cache.DEVICES, cache.PODS, SLICES, CLAIMS
    found = cluster.read(*(listed.get(each) or () for each in kinds))
    nodes = [node for node in found.nodes if node.name == name]
    if at(pod, "status").get("phase") == "Running":
        await reader.rates(nodes, _SAMPLED_S)
    if "use" in reader.notices:
        missing.append(f"get and create pods/portforward in namespace {names.NAMESPACE}")
    return [gpu for node in nodes for gpu in node.gpus]


async def _suspended(kube: Kube, namespace: str, name: str) -> Json | None:
    """Return a Job that waits in a queue as a pod at Kueue's gate, for it has no pods yet."""
    try:
        job = await kube.get(f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}")
    except KubeError as error:
        if error.status not in (NOT_FOUND, FORBIDDEN):
            raise
        return None
    metadata, template = at(job, "metadata"), at(at(job, "spec"), "template")
    labels = {**texts(at(template, "metadata"), "labels"), **texts(metadata, "labels")}
    if not at(job, "spec").get("suspend") or names.LABEL_KUEUE_QUEUE not in labels:
        return None
    written = {"annotations": at(at(template, "metadata"), "annotations"), "labels": labels}
    gated = {**at(template, "spec"), "schedulingGates": [{"name": figures.GATE}]}
    return {"metadata": {**metadata, **written}, "spec": gated}


async def _place(kube: Kube, pod: Json, missing: list[str]) -> queue_state.Place:
    """Return the pod's place in its queue; an empty one without a right."""
    is_queued = names.LABEL_KUEUE_QUEUE in at(at(pod, "metadata"), "labels")
    paths = (QUEUES, queue_state.WORKLOADS, queue_state.LOCAL_QUEUES)
    queues, works, local = [await _list(kube, e, missing) if is_queued else () for e in paths]
    if queues is None or works is None or local is None:
        return queue_state.Place()
    return queue_state.place(queues, works, local, pod)


async def _list(
    kube: Kube, path: str, missing: list[str], selector: str = ""
) -> Sequence[Json] | None:
    """Return the objects. None if the user may not list them, and then add the missing right."""
    try:
        pages = kube.list(path, fieldSelector=selector)
        return [item async for items, _ in pages for item in items]
    except KubeError as error:
        if error.status == NOT_FOUND:  # no Device was ever defined
            return ()
        if error.status != FORBIDDEN:
            raise
        *_, resource = path.split("/")
        space = path.partition("/namespaces/")[2].partition("/")[0]
        missing.append(f"list {resource}" + (f" in namespace {space}" if space else ""))
        return None


def _latest_first(events: Sequence[Json], uid: str) -> Sequence[Json]:
    """Return the Events about the object of this UID, and not about an earlier one of its name."""
    about = [e for e in events if not uid or at(e, "regarding").get("uid") == uid]
    return sorted(about, key=time_of, reverse=True)
