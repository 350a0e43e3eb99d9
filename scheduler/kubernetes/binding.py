"""Makes the content of a Binding, and interprets the API server's answers to it.

`contract` defines the formats. The binder acts on the verdicts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from gpuslice.contract import allocation, grants, names, required_plugins
from gpuslice.kube.errors import UNREACHABLE, KubeError
from gpuslice.kube.fields import Json
from scheduler.core.place import Peak, Placement
from scheduler.dialects.reading import Outputs
from scheduler.dialects.table import Enabled
from scheduler.kubernetes import requests
from scheduler.kubernetes.requests import Pending

_RETRYABLE: Final = frozenset({401, 429})
_UNDECIDED: Final = frozenset({408, 409})
_NONE: Final = Outputs()


def annotations_of(placement: Placement, outputs: Outputs = _NONE) -> Mapping[str, str]:
    """Return all annotations of the Binding. outputs: what the pod's dialect adds.

    If a container requests no core, its grant's core is 100. The allocation then has less than 100
    percent of core, or omits the key if no container of the pod holds core of the GPU.
    """
    granted: dict[str, list[grants.GpuGrant]] = {}
    for share in placement.shares:
        core = 100 if share.core_percent is None else share.core_percent
        gpu = grants.GpuGrant(share.uuid, share.minor, share.memory_bytes, core)
        granted.setdefault(share.container, []).append(gpu)
    entries = tuple(_entry(peak) for peak in placement.peaks if peak.memory_bytes)
    return {
        **outputs.annotations,
        names.ANNOTATION_DEVICE_ALLOCATED: allocation.encode(
            allocation.Allocation({names.DEVICE_TYPE_GPU: entries})
        ),
        names.ANNOTATION_GRANTS: grants.encode(
            granted, outputs.environment, outputs.visible_devices
        ),
        **required_plugins.binding_annotations(granted),
    }


def _entry(peak: Peak) -> allocation.DeviceEntry:
    resources = {
        names.RESOURCE_MEMORY: peak.memory_bytes,
        names.RESOURCE_MEMORY_RATIO: peak.memory_percent,
    }
    if peak.core_percent is not None:
        resources[names.RESOURCE_CORE] = peak.core_percent
    return allocation.DeviceEntry(peak.minor, resources, peak.uuid)


def binding(
    namespace: str,
    name: str,
    uid: str,
    node: str,
    annotations: Mapping[str, str] | None,
    writer: str = "",
    version: str = "",
) -> Json:
    """Return the Binding of a pod to a node. annotations: None if the pod requests no share.

    The API server refuses the Binding if another pod has the name (uid), if another process may
    write by then (writer, see `leadership`), or if the pod's resourceVersion is not `version`.
    """
    metadata: dict[str, Any] = {"namespace": namespace, "name": name, "uid": uid}
    if version:
        metadata["resourceVersion"] = version
    if annotations is not None:
        metadata["annotations"] = dict(annotations)
        if writer:
            metadata["annotations"][names.ANNOTATION_WRITER] = writer
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": metadata,
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


# --- outcome -------------------------------------------------------------------------------------


class Verdict(Enum):
    """What an error answer says about a Binding."""

    REFUSED = "was not done and will not be"
    NOT_DONE = "was not done, and may be if it is sent again"
    UNKNOWN = "may have been done, or may be yet"


def verdict(error: KubeError) -> Verdict:
    """Interpret the error. 409 is UNKNOWN: the API server returns it for a pod that is bound or has
    changed, but also for failures of its store, such as a timeout after the write."""
    if error.reason == UNREACHABLE or error.status in _RETRYABLE:
        return Verdict.NOT_DONE
    if 400 <= error.status < 500 and error.status not in _UNDECIDED:
        return Verdict.REFUSED
    return Verdict.UNKNOWN


@dataclass(frozen=True, slots=True)
class PodState:
    """The pod that the API server has now. gone: whether no pod has that UID."""

    gone: bool
    deleting: bool
    node: str
    pending: Pending


def pod_state(raw: Json, uid: str, enabled: Enabled) -> PodState:
    """Read a pod. raw: the pod of that name; {} if there is none. enabled: see `pending`."""
    metadata, spec = raw.get("metadata") or {}, raw.get("spec") or {}
    return PodState(
        gone=metadata.get("uid") != uid,
        deleting=bool(metadata.get("deletionTimestamp")),
        node=spec.get("nodeName") or "",
        pending=requests.pending(raw, enabled),
    )
