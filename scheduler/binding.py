"""The Binding: what it carries, and what the API server's answers about it mean.

Pure. The formats are `contract`'s; what follows from an answer, the binder decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from contract import allocation, grants, names, required_plugins
from kube.client import UNREACHABLE, KubeError
from scheduler import requests
from scheduler.core.place import Peak, Placement
from scheduler.requests import Json, Pending

_RETRYABLE: Final = frozenset({401, 429})
_UNDECIDED: Final = frozenset({408, 409})
_REMEMBERED: Final = 256
"""Placements: from when one is sent until the watch tells it."""


@lru_cache(_REMEMBERED)
def annotations_of(placement: Placement) -> Mapping[str, str]:
    """All that is written onto the pod in the write that binds it.

    A grant's core is 100 where none was asked for: the allocation leaves the key out there, which
    is what says that nothing of the GPU's compute is held.
    """
    granted: dict[str, list[grants.GpuGrant]] = {}
    for share in placement.shares:
        core = 100 if share.core_percent is None else share.core_percent
        gpu = grants.GpuGrant(share.uuid, share.minor, share.memory_bytes, core)
        granted.setdefault(share.container, []).append(gpu)
    entries = tuple(_entry(peak) for peak in placement.peaks)
    return MappingProxyType(
        {
            names.ANNOTATION_DEVICE_ALLOCATED: allocation.encode(
                allocation.Allocation({names.DEVICE_TYPE_GPU: entries})
            ),
            names.ANNOTATION_GRANTS: grants.encode(granted),
            **required_plugins.binding_annotations(granted),
        }
    )


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
    placement: Placement | None,
    writer: str = "",
    version: str = "",
) -> Json:
    """The Binding of a pod to a node; None: a pod that asks for no share.

    The UID makes the API server refuse it where another pod has taken the name; writer, of
    `scheduler.leader`, where another process may write by now; version, the pod's resourceVersion,
    where the pod has changed since.
    """
    metadata: dict[str, Any] = {"namespace": namespace, "name": name, "uid": uid}
    if version:
        metadata["resourceVersion"] = version
    if placement is not None:
        metadata["annotations"] = dict(annotations_of(placement))
        if writer:
            metadata["annotations"][names.ANNOTATION_WRITER] = writer
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": metadata,
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


# --- its outcome ---------------------------------------------------------------------------------


class Verdict(Enum):
    """Of a Binding that was not answered with success."""

    REFUSED = "was not done and will not be"
    NOT_DONE = "was not done, and may be if it is sent again"
    UNKNOWN = "may have been done, or may be yet"


def verdict(error: KubeError) -> Verdict:
    """409 is what the API server says of a pod that is bound or has changed, and of every failure
    of its store that it has no word for, a time-out after the write among them."""
    if error.reason == UNREACHABLE or error.status in _RETRYABLE:
        return Verdict.NOT_DONE
    if 400 <= error.status < 500 and error.status not in _UNDECIDED:
        return Verdict.REFUSED
    return Verdict.UNKNOWN


@dataclass(frozen=True, slots=True)
class Seen:
    """The pod as the API server has it now. gone: there is none of that UID."""

    gone: bool
    deleting: bool
    node: str
    asked: Pending


def seen(raw: Json, uid: str) -> Seen:
    """raw: the pod of that name; {} where there is none."""
    metadata, spec = raw.get("metadata") or {}, raw.get("spec") or {}
    return Seen(
        gone=metadata.get("uid") != uid,
        deleting=bool(metadata.get("deletionTimestamp")),
        node=spec.get("nodeName") or "",
        asked=requests.pending(raw),
    )
