"""Kubernetes objects as the API server writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gpuslice.contract import names

Mi, Gi = 2**20, 2**30

_NAMES = {
    "core": names.RESOURCE_CORE,
    "memory": names.RESOURCE_MEMORY,
    "ratio": names.RESOURCE_MEMORY_RATIO,
    "shared": names.RESOURCE_SHARED,
    "gpu": names.RESOURCE_GPU,
}


def resources(**amounts: object) -> dict[str, object]:
    """Return resources by name. The arguments are core, memory, ratio, shared and gpu."""
    return {_NAMES[name]: amount for name, amount in amounts.items()}


def container(name: str, sidecar: bool = False, **amounts: object) -> dict[str, Any]:
    asked = resources(**amounts)
    always = {"restartPolicy": "Always"} if sidecar else {}
    return {"name": name, "resources": {"requests": asked, "limits": asked}, **always}


def pod(
    *containers: Mapping[str, Any],
    inits: Sequence[Mapping[str, Any]] = (),
    uid: str = "u-1",
    node: str = "",
    phase: str = "Pending",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    identity = {"uid": uid, "namespace": "default", "name": f"pod-{uid}"}
    written = {"labels": dict(labels or {}), "annotations": dict(annotations or {})}
    bound = {"nodeName": node} if node else {}
    return {
        "metadata": {**identity, **written},
        "spec": {"containers": list(containers), "initContainers": list(inits), **bound},
        "status": {"phase": phase},
    }


def node(name: str, uid: str = "", isolates: bool = True, **annotations: str) -> dict[str, Any]:
    """Return a node. annotations: cordoned_gpus sets gpuslice.io/cordoned-gpus, and so on."""
    label = {names.LABEL_ISOLATION_PROVIDER: "HAMi-core"} if isolates else {}
    written = {f"gpuslice.io/{key.replace('_', '-')}": text for key, text in annotations.items()}
    metadata = {"name": name, "uid": uid or f"uid-{name}"}
    return {"metadata": {**metadata, "labels": label, "annotations": written}}


def gpu(
    uuid: str,
    minor: int,
    memory: str = "24Gi",
    numa: int = 0,
    root: str = "pci0000:00",
    **fields: object,
) -> dict[str, Any]:
    """Return a GPU of a Device. fields: values of `health` and `labels` other than the default."""
    amounts = resources(core="100", memory=memory, ratio="100")
    topology = {"socketID": -1, "nodeID": numa, "pcieID": root}
    identity = {"type": "gpu", "id": uuid, "minor": minor, "health": True, "labels": None}
    return {**identity, **fields, "resources": amounts, "topology": topology}


def device(name: str, *gpus: Mapping[str, Any], node_uid: str = "") -> dict[str, Any]:
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node_uid or f"uid-{name}"}
    return {
        "apiVersion": names.DEVICE_API_VERSION,
        "kind": names.DEVICE_KIND,
        "metadata": {"name": name, "ownerReferences": [owner]},
        "spec": {"devices": list(gpus)},
    }


RENEWED_S = 1767225600.0
"""The time of the first renewal in `lease`, in seconds since the epoch."""


def lease(node_name: str, beat: int = 0, ready: str | None = "true") -> dict[str, Any]:
    metadata = {"namespace": names.NAMESPACE, "name": names.LEASE_AGENT_PREFIX + node_name}
    said = {} if ready is None else {names.ANNOTATION_READY: ready}
    return {
        "metadata": {**metadata, "annotations": said},
        "spec": {"renewTime": f"2026-01-01T00:00:{beat:02}.000000Z"},
    }


def allocated(*entries: tuple[str | None, int, Mapping[str, object]]) -> str:
    """Return the allocation annotation. Each entry is (id, minor, resources)."""
    listed = [
        {"minor": minor, "resources": dict(held), **({"id": uuid} if uuid else {})}
        for uuid, minor, held in entries
    ]
    return json.dumps({"gpu": listed})


def written(name: str, *fields: tuple[str, object, str]) -> dict[str, Any]:
    """Return an object. Each field is (path, value, writers); blanks separate keys and writers."""
    entries: list[object] = []
    identity = {"name": name, "uid": f"uid-{name}", "resourceVersion": "7"}
    raw: dict[str, Any] = {"metadata": {**identity, "managedFields": entries}}
    for path, value, writers in fields:
        *above, last = path.split()
        place, owned = raw, {f"f:{last}": dict[str, Any]()}
        for key in above:
            place = place.setdefault(key, {})
        for key in reversed(above):
            owned = {f"f:{key}": owned}
        place[last] = value
        entries += [{"manager": by, "fieldsV1": owned} for by in writers.split()]
    return raw
