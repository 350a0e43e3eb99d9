"""Adds up what each pod holds of each GPU, and reports errors: the judge of every load.

It is independent of the scheduler's code: it reads the API server's JSON and adds in plain loops.
The loads' pods have only main containers, which request Koordinator's percentages or nothing.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any, Final

Json = Mapping[str, Any]

_UNITS: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_MEMORY, _CORE = "koordinator.sh/gpu-memory", "koordinator.sh/gpu-core"


@dataclass
class Gpu:
    node: str
    uuid: str
    minor: int
    total_bytes: int
    held_bytes: int = 0
    held_core: int = 0


@dataclass(frozen=True, slots=True)
class Share:
    """One container's request: this percentage of each of `gpus` GPUs."""

    gpus: int
    memory_percent: int
    core_percent: int


@dataclass
class Books:
    """gpus: each GPU by UUID. wrong: descriptions of the errors. pending: the requests of each pod
    without a node, by UID. bound: UIDs of the pods with a node."""

    gpus: dict[str, Gpu] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    pending: dict[str, Sequence[Share]] = field(default_factory=dict)
    bound: set[str] = field(default_factory=set)

    @property
    def fitting(self) -> set[str]:
        """The UIDs of the pending pods that would fit on some node if only that pod were added."""
        nodes: dict[str, list[Gpu]] = defaultdict(list)
        for gpu in self.gpus.values():
            nodes[gpu.node].append(gpu)
        # Each distinct request is tried once, because many pods have the same request.
        fits = {
            requests: any(_fits(gpus, requests) for gpus in nodes.values())
            for requests in set(self.pending.values())
        }
        return {uid for uid, requests in self.pending.items() if fits[requests]}


def books(pods: Sequence[Json], devices: Sequence[Json]) -> Books:
    made = Books()
    for device in devices:
        for entry in device["spec"]["devices"]:
            size, name = _bytes(entry["resources"][_MEMORY]), device["metadata"]["name"]
            made.gpus[entry["id"]] = Gpu(name, entry["id"], entry["minor"], size)
    for pod in pods:
        if pod["status"].get("phase") in ("Succeeded", "Failed"):
            continue
        uid = pod["metadata"]["uid"]
        if pod["spec"].get("nodeName"):
            made.bound.add(uid)
            _enter(made, pod)
        else:
            made.pending[uid] = requests_of(pod)
            if "gpuslice.io/grants" in pod["metadata"].get("annotations", {}):
                made.wrong.append(f"{_name(pod)}: has grants and no node")
    for gpu in made.gpus.values():
        if gpu.held_bytes > gpu.total_bytes or gpu.held_core > 100:
            made.wrong.append(
                f"{gpu.node}, minor {gpu.minor}: {gpu.held_bytes} of {gpu.total_bytes} bytes"
                f" and {gpu.held_core} percent of core are given out"
            )
    return made


def requests_of(pod: Json) -> Sequence[Share]:
    return tuple(_request(container) for container in pod["spec"]["containers"])


def _request(container: Json) -> Share:
    asked = container.get("resources", {}).get("requests", {})
    percent = int(asked.get("koordinator.sh/gpu-memory-ratio", 0))
    core = int(asked.get(_CORE, 0))
    if not percent and not core:
        return Share(0, 0, 0)
    gpus = int(asked.get("koordinator.sh/gpu.shared", max(1, percent // 100)))
    return Share(gpus, percent // gpus, core // gpus)


def _enter(into: Books, pod: Json) -> None:
    """Add what the pod's grants hold. Check that they equal its request and its allocation."""
    annotations, name = pod["metadata"].get("annotations", {}), _name(pod)
    try:
        granted = json.loads(annotations["gpuslice.io/grants"])["containers"]
        allocated = json.loads(annotations["scheduling.koordinator.sh/device-allocated"])["gpu"]
    except KeyError as error:
        into.wrong.append(f"{name}: is bound without {error}")
        return
    by_gpu: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for container, request in zip(pod["spec"]["containers"], requests_of(pod), strict=True):
        shares = granted.get(container["name"], [])
        if len({share["id"] for share in shares}) != request.gpus:
            into.wrong.append(f"{name}: {container['name']} has {shares}, asked {request}")
        for share in shares:
            gpu = into.gpus.get(share["id"])
            if gpu is None or gpu.node != pod["spec"]["nodeName"] or gpu.minor != share["minor"]:
                into.wrong.append(f"{name}: {share['id']} is no GPU of its node")
                continue
            wanted = gpu.total_bytes * request.memory_percent // 100, request.core_percent
            if (share["memory"], share["core"]) != wanted:
                into.wrong.append(f"{name}: has {share}, asked {request}")
            gpu.held_bytes += share["memory"]
            gpu.held_core += share["core"]
            by_gpu[share["id"]][0] += share["memory"]
            by_gpu[share["id"]][1] += share["core"]
    said = {
        entry["id"]: [_bytes(entry["resources"][_MEMORY]), int(entry["resources"][_CORE])]
        for entry in allocated
    }
    if said != by_gpu:
        into.wrong.append(f"{name}: its allocation {said} is not its grants' sum {by_gpu}")


def _fits(gpus: Sequence[Gpu], requests: Sequence[Share]) -> bool:
    """Return whether all containers fit on the node together, after trying every combination."""
    ways = product(*(combinations(gpus, request.gpus) for request in requests))
    return any(_suffices(way, requests) for way in ways)


def _suffices(way: Sequence[Sequence[Gpu]], requests: Sequence[Share]) -> bool:
    size: dict[str, int] = defaultdict(int)
    core: dict[str, int] = defaultdict(int)
    for chosen, request in zip(way, requests, strict=True):
        for gpu in chosen:
            size[gpu.uuid] += gpu.total_bytes * request.memory_percent // 100
            core[gpu.uuid] += request.core_percent
    return all(
        gpu.held_bytes + size[gpu.uuid] <= gpu.total_bytes and gpu.held_core + core[gpu.uuid] <= 100
        for chosen in way
        for gpu in chosen
    )


def _bytes(text: str) -> int:
    unit = _UNITS.get(text[-2:])
    return int(text) if unit is None else int(text[:-2]) * unit


def _name(pod: Json) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
