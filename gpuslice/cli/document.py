"""The cluster with the use of its GPUs, as JSON for programs and the page of `gpuslice ui`. Pure.

Amounts are bytes, and null is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gpuslice.cli.cluster import Cluster, Gpu, Node
from gpuslice.cli.use import Use


def document(cluster: Cluster, use: Mapping[str, Use], notices: Iterable[str]) -> Mapping[str, Any]:
    """Return the document. use: by node; nodes without an answer are absent."""
    return {
        "nodes": [_node(node, use.get(node.name)) for node in cluster.nodes],
        "waiting": [asdict(each) for each in cluster.waiting],
        "notices": list(notices),
    }


def _node(node: Node, use: Use | None) -> Mapping[str, Any]:
    return {"name": node.name, "gpus": [_gpu(gpu, use) for gpu in node.gpus]}


def _gpu(gpu: Gpu, use: Use | None) -> Mapping[str, Any]:
    slices: Sequence[Mapping[str, Any]] = [
        {**asdict(each), "use": asdict(found) if found else None}
        for each in gpu.slices
        for found in [use and use.slices.get(each.key(gpu))]
    ]
    found = use.gpus.get(gpu.uuid) if use else None
    unhandled = found.unhandled if found else None
    figures = {"used_bytes": used_bytes(gpu, use), "unhandled": unhandled}
    return {**asdict(gpu), **figures, "slices": slices}


def used_bytes(gpu: Gpu, use: Use | None) -> float | None:
    """Return what the GPU's slices use, as the agent says it or as the sum of the slices."""
    if use is None:
        return None
    if gpu.uuid in use.gpus and use.gpus[gpu.uuid].used_bytes is not None:
        return use.gpus[gpu.uuid].used_bytes
    known = [v.used_bytes for k, v in use.slices.items() if k[3] == gpu.uuid]
    return sum(filter(None, known)) if any(each is not None for each in known) else None
