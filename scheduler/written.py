"""What the Binding carries: a placement as annotations, and the object that is POSTed.

Pure. The formats are `contract`'s; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from contract import allocation, grants, names, required_plugins
from scheduler.core.place import Peak, Placement

_REMEMBERED: Final = 256
"""Placements: from when one is sent until the watch tells it."""


@lru_cache(_REMEMBERED)
def annotations_of(placement: Placement) -> Mapping[str, str]:
    """All that is written onto the pod in the write that binds it.

    A grant's core is 100 where none was asked for: the allocation leaves the key out there, which
    is what says that nothing of the card's compute is held.
    """
    granted: dict[str, list[grants.CardGrant]] = {}
    for share in placement.shares:
        core = 100 if share.core_percent is None else share.core_percent
        card = grants.CardGrant(share.uuid, share.minor, share.memory_bytes, core)
        granted.setdefault(share.container, []).append(card)
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
) -> Mapping[str, Any]:
    """The Binding of a pod to a node; None: a pod that asks for no share.

    The UID makes the API server refuse it where another pod has taken the name; writer, of
    `scheduler.gate`, where another process may write by now; version, the pod's resourceVersion,
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
