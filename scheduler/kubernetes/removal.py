"""An uninstallation's patches of nodes and Devices: they remove what gpuslice's agents wrote, as
recorded in managedFields. Pure. Values of other programs (Koordinator's, an operator's) stay.

Capacity is removed, not set to zero: a kubelet that restarts admits its running pods again, ignores
requests for a resource that the node does not have, and rejects pods that request more of one than
it has. So a zero that the kubelet wrote over the agents' value, as it starts, is removed too.
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
    """The patch of nodes/status that removes the agents' totals; None: there are none."""
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
    """The patch of a node that removes the agents' labels and annotations; None: there are none."""
    removed: dict[str, Json] = {}
    for kind in ("labels", "annotations"):
        there = at(at(node, "metadata"), kind)
        writers = fields.writers(node, "metadata", kind)
        ours = {key: None for key in sorted(there) if names.AGENT in writers.get(key, ())}
        removed |= {kind: ours} if ours else {}
    return {"metadata": {**removed, **_version(node)}} if removed else None


def kept(node: Json) -> list[str]:
    """Totals of GPUs, and gpuslice's labels and annotations, that no agent wrote."""
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
    """Whether an agent, and no other program, wrote the Device's list."""
    return fields.writers(device, "spec").get("devices") == {names.AGENT}


def device_patch(device: Json) -> Json | None:
    """The patch that leaves the entries of other programs (RDMA, FPGA) in an agent's Device; None:
    it has none, and is to be deleted."""
    entries = objects(at(device, "spec"), "devices")
    others = [each for each in entries if each.get("type") != names.DEVICE_TYPE_GPU]
    return {"metadata": _version(device), "spec": {"devices": others}} if others else None


def deletion(raw: Json, policy: str = "Background") -> Json:
    """Delete options that match only this object, as it was read."""
    metadata = at(raw, "metadata")
    return {"propagationPolicy": policy, "preconditions": {"uid": metadata.get("uid")}}


def has_share(pod: Json) -> bool:
    """Whether the pod is bound, has not ended, and holds a share of a GPU."""
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


def _version(raw: Json) -> Json:
    """A patch with it fails if the object has changed since it was read."""
    return {"resourceVersion": at(raw, "metadata").get("resourceVersion")}
