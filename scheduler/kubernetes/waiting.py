"""Reads an unbound pod: what decides whether and where it may be nominated.

Pure. kube-scheduler tries a pod's `status.nominatedNodeName` first, and skips its scores if the pod
fits there. So a pod with preferences is not nominable, nor one whose feasible nodes change with
every pod that is placed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from contract import names
from kube.fields import Json, at, objects
from kube.managed_fields import writers
from scheduler.dialects.table import DEFAULT, Enabled
from scheduler.kubernetes import requests
from scheduler.kubernetes.requests import Pending

_INTER_POD: Final = ("podAffinity", "podAntiAffinity")
_ON_NODES: Final = ("nodeSelector", "tolerations", "overhead", "resources")
_VOLUMES: Final = (
    *("persistentVolumeClaim", "ephemeral", "csi"),
    *("gcePersistentDisk", "awsElasticBlockStore", "rbd", "iscsi"),
)


@dataclass(frozen=True, slots=True)
class Waiting:
    """constraints: equal for pods that kube-scheduler's own filters accept on the same nodes.
    nominated: status.nominatedNodeName; is_ours: this program wrote it. was_refused: kube-scheduler
    found no node at its last try."""

    pending: Pending
    created: str
    constraints: bytes
    is_nominable: bool
    nominated: str
    is_ours: bool
    was_refused: bool


def waiting(pod: Json, enabled: Enabled = DEFAULT) -> Waiting:
    """Never raises for content that the pod's author wrote. enabled: the dialects that are on."""
    pending = requests.pending(pod, enabled)
    metadata, spec = at(pod, "metadata"), at(pod, "spec")
    nominated = str(at(pod, "status").get("nominatedNodeName") or "")
    was_refused = requests.was_refused(pod)
    return Waiting(
        pending=pending,
        created=str(metadata.get("creationTimestamp", "")),
        constraints=_constraints(spec),
        is_nominable=pending.request is not None
        and not pending.prefers
        and not any(_dynamic_constraints(spec))
        and not metadata.get("deletionTimestamp")
        and not spec.get("schedulingGates")
        and not was_refused,
        nominated=nominated,
        is_ours=bool(nominated)
        and names.SCHEDULER_NAME in writers(pod, "status").get("nominatedNodeName", ()),
        was_refused=was_refused,
    )


def nomination(pending: Pending, node: str | None) -> Mapping[str, Any]:
    """The patch of the pod's status that nominates the node; None withdraws. The API server refuses
    it if the pod is another or has changed since it was read, and records the field's writer."""
    metadata = {"uid": pending.uid, "resourceVersion": pending.version}
    return {"metadata": metadata, "status": {"nominatedNodeName": node}}


def _constraints(spec: Json) -> bytes:
    """Fields that kube-scheduler's filters of nodes read, amounts of processors and memory too."""
    amounts = [
        at(container, "resources").get("requests")
        for kind in ("initContainers", "containers")
        for container in objects(spec, kind)
    ]
    read = [spec.get("schedulerName"), *(spec.get(key) for key in _ON_NODES), amounts]
    read.append(at(spec, "affinity").get("nodeAffinity"))
    try:
        return orjson.dumps(read, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return repr(read).encode("utf-8", "replace")


def _dynamic_constraints(spec: Json) -> Iterator[object]:
    """Constraints whose feasible nodes change with other pods, or with volumes."""
    affinity = at(spec, "affinity")
    for kind in _INTER_POD:
        yield affinity.get(kind)
    yield spec.get("topologySpreadConstraints")
    yield spec.get("resourceClaims")
    for volume in objects(spec, "volumes"):
        yield any(kind in volume for kind in _VOLUMES)
    for kind in ("initContainers", "containers"):
        for container in objects(spec, kind):
            yield any(port.get("hostPort") for port in objects(container, "ports"))
