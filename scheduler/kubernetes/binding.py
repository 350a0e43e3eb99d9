"""The Binding: its content, and the meaning of the API server's answers to it.

Pure. The formats are defined in `contract`; the binder acts on the verdicts.
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
    """All annotations of the Binding. outputs: of the pod's dialect.

    A grant's core is 100 where the pod did not request compute. The allocation then omits the key,
    which marks that no compute of the GPU is reserved.
    """
    granted: dict[str, list[grants.GpuGrant]] = {}
    for share in placement.shares:
        core = 100 if share.core_percent is None else share.core_percent
        gpu = grants.GpuGrant(share.uuid, share.minor, share.memory_bytes, core)
        granted.setdefault(share.container, []).append(gpu)
    entries = tuple(_entry(peak) for peak in placement.peaks)
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
    """The Binding of a pod to a node; annotations None: the pod requests no share.

    The API server refuses it by UID if another pod has the name; by writer (see
    `scheduler.leadership`) if another process may write by then; by version (the
    resourceVersion) if the pod has changed since.
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
    """Meaning of an error answer to a Binding."""

    REFUSED = "was not done and will not be"
    NOT_DONE = "was not done, and may be if it is sent again"
    UNKNOWN = "may have been done, or may be yet"


def verdict(error: KubeError) -> Verdict:
    """The API server returns 409 for a pod that is bound or has changed, and also for every store
    failure without a code of its own, a timeout after the write among them."""
    if error.reason == UNREACHABLE or error.status in _RETRYABLE:
        return Verdict.NOT_DONE
    if 400 <= error.status < 500 and error.status not in _UNDECIDED:
        return Verdict.REFUSED
    return Verdict.UNKNOWN


@dataclass(frozen=True, slots=True)
class PodState:
    """The pod as the API server has it now. gone: no pod has that UID."""

    gone: bool
    deleting: bool
    node: str
    pending: Pending


def pod_state(raw: Json, uid: str, enabled: Enabled) -> PodState:
    """raw: the pod of that name; {} if there is none. enabled: the dialects that are on."""
    metadata, spec = raw.get("metadata") or {}, raw.get("spec") or {}
    return PodState(
        gone=metadata.get("uid") != uid,
        deleting=bool(metadata.get("deletionTimestamp")),
        node=spec.get("nodeName") or "",
        pending=requests.pending(raw, enabled),
    )
