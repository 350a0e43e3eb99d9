"""Makes the patches of nodes and Devices for an uninstallation. They remove what gpuslice's agents
wrote, according to managedFields. Values of other programs, such as Koordinator, stay.

Capacity is removed, not set to zero, because of kubelets that restart. They admit their running
pods again, and reject a pod that requests more of a resource than the node has. Requests of a
resource that the node does not have are ignored. A starting kubelet may replace the agents' value
by zero, and this zero is removed too.
"""

from __future__ import annotations

import json
from typing import Final

from gpuslice.contract import names
from gpuslice.contract.dialects import NODE_RESOURCES
from gpuslice.kube import fields
from gpuslice.kube.fields import Json, at, objects

_PREFIX: Final = "gpuslice.io/"
_KUBELET: Final = "kubelet"
_AMOUNTS: Final = ("capacity", "allocatable")


def status_patch(node: Json) -> Json | None:
    """Return the patch of nodes/status that removes the agents' resources; None if none exist."""
    writers = {kind: fields.writers(node, "status", kind) for kind in _AMOUNTS}
    ours = {
        key
        for kind in _AMOUNTS
        for key, amount in at(at(node, "status"), kind).items()
        if names.AGENT in (by := writers[kind].get(key, frozenset()))
        or (key in NODE_RESOURCES and amount == "0" and by <= {_KUBELET})
    }
    removed: dict[str, Json] = {
        kind: {key: None for key in sorted(ours & at(at(node, "status"), kind).keys())}
        for kind in _AMOUNTS
    }
    removed = {kind: keys for kind, keys in removed.items() if keys}
    return {"metadata": _version(node), "status": removed} if removed else None


def metadata_patch(node: Json) -> Json | None:
    """Return the patch that removes the agents' labels and annotations; None if none exist."""
    removed: dict[str, Json] = {}
    for kind in ("labels", "annotations"):
        there = at(at(node, "metadata"), kind)
        writers = fields.writers(node, "metadata", kind)
        ours = {key: None for key in sorted(there) if names.AGENT in writers.get(key, ())}
        removed |= {kind: ours} if ours else {}
    return {"metadata": {**removed, **_version(node)}} if removed else None


def kept(node: Json) -> list[str]:
    """Return the totals of GPUs and gpuslice's labels and annotations that no agent wrote."""
    removed = at(at(status_patch(node) or {}, "status"), "capacity")
    there = at(at(node, "status"), "capacity").keys() & set(NODE_RESOURCES) - removed.keys()
    return sorted(there) + [
        key
        for kind in ("labels", "annotations")
        for key in sorted(at(at(node, "metadata"), kind))
        if key.startswith(_PREFIX)
        and names.AGENT not in fields.writers(node, "metadata", kind).get(key, ())
    ]


def is_agents(device: Json) -> bool:
    """Return whether only the agent wrote the Device's list."""
    return fields.writers(device, "spec").get("devices") == {names.AGENT}


def device_patch(device: Json) -> Json | None:
    """Return the patch that removes the GPUs from an agent's Device. Return None if the Device has
    no other entries, such as RDMA, and must be deleted."""
    entries = objects(at(device, "spec"), "devices")
    others = [each for each in entries if each.get("type") != names.DEVICE_TYPE_GPU]
    return {"metadata": _version(device), "spec": {"devices": others}} if others else None


def deletion(raw: Json, policy: str) -> Json:
    """Return options of a deletion that fails if another object has the name by then."""
    metadata = at(raw, "metadata")
    return {"propagationPolicy": policy, "preconditions": {"uid": metadata.get("uid")}}


def has_share(pod: Json) -> bool:
    """Return whether the pod is bound, has not ended, and holds a share of a GPU."""
    spec, status, annotations = (
        at(pod, "spec"),
        at(pod, "status"),
        at(at(pod, "metadata"), "annotations"),
    )
    if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
        return False
    try:
        allocated = json.loads(annotations.get(names.ANNOTATION_DEVICE_ALLOCATED, "{}"))
    except ValueError:
        allocated = {}
    of_gpu = isinstance(allocated, dict) and names.DEVICE_TYPE_GPU in allocated
    return of_gpu or names.ANNOTATION_GRANTS in annotations


def reserved_for(claim: Json) -> list[str]:
    """Return the pods, as NAMESPACE/NAME, that a ResourceClaim gives a share of a GPU."""
    namespace = at(claim, "metadata").get("namespace")
    reserved = objects(at(claim, "status"), "reservedFor")
    pods = reserved if fields.allocated(claim, names.DRA_DRIVER) else ()
    return [f"{namespace}/{pod.get('name')}" for pod in pods]


def _version(raw: Json) -> Json:
    """Return metadata that makes a patch fail if the object has changed since it was read."""
    return {"resourceVersion": at(raw, "metadata").get("resourceVersion")}
