"""Converts between the API server's JSON and the agent's types, for all kinds that the agent uses.

Pure. An unreadable value in another program's object counts as missing. The written fields are
those that the scheduler reads.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from gpuslice.contract import names, quantity
from gpuslice.contract.dialects import NODE_RESOURCES
from gpuslice.kube.fields import NOTHING, Json, at, objects, texts, writers
from nri_plugin.policy.model import Gpu, Pod
from nri_plugin.policy.notices import Notice
from nri_plugin.policy.totals import PERCENT, Entry

_UNKNOWN: Final = -1
_OURS: Final = (names.ANNOTATION_DEVICE_ALLOCATED, names.ANNOTATION_GRANTS)
_AT_SOME_TIME: Final = "9999"
"""The binding time of a bound pod without a readable time. It sorts after every time."""
_FINISHED: Final = frozenset({"Succeeded", "Failed"})
_NOTE_MAX: Final = 1000
_PLUGIN_GPUS: Final = (names.RESOURCE_NVIDIA_GPU, names.RESOURCE_MIG_PREFIX)
"""Prefixes of resources. The first also matches nvidia.com/gpu.shared, for NVIDIA's time slices."""
_HEALTHY: Final = "Healthy"
"""The type of a GPU's condition in the Device."""
_INSTANCE_MAX: Final = 128
_NO_NAMESPACE: Final = "default"
"""The namespace of a node's events. The API server requires one."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What the agent reads of its Node. isolates: the Node has the label for isolation.
    plugin_gpus: allocatable GPUs of device plugins, by resource. operator: NVIDIA's GPU Operator
    manages the node. written: resources of the capacity that an agent wrote, as managedFields says.
    front_end: the label's value; "": the Node has none.
    """

    uid: str
    isolates: bool
    excluded: AbstractSet[str]
    capacity: Mapping[str, int]
    allocatable: Mapping[str, int]
    plugin_gpus: Mapping[str, str]
    operator: bool
    written: AbstractSet[str]
    front_end: str = ""


@dataclass(frozen=True, slots=True)
class Bound:
    """A pod of this node, as the API server reports it.

    pod: has only the labels and annotations of its grant. scheduled: the binding time in RFC 3339,
    "" if no Binding bound it. is_ours: its schedulerName is our scheduler's. writer: the scheduler
    process that its annotation names. awaits_claims: it is pending and has ResourceClaims.
    """

    pod: Pod
    scheduled: str
    finished: bool
    requested: Mapping[str, int]
    is_ours: bool = False
    writer: str = ""
    awaits_claims: bool = False


# --- reading -------------------------------------------------------------------------------------


def node(raw: Json) -> NodeFacts:
    metadata, status = at(raw, "metadata"), at(raw, "status")
    listed = texts(metadata, "annotations").get(names.ANNOTATION_EXCLUDED_GPUS, "").split(",")
    provider = texts(metadata, "labels").get(names.LABEL_ISOLATION_PROVIDER, "")
    return NodeFacts(
        uid=str(metadata.get("uid", "")),
        isolates=provider.lower() == names.ISOLATION_PROVIDER,
        excluded=frozenset(each.strip() for each in listed if each.strip()),
        capacity=_amounts(at(status, "capacity")),
        allocatable=_amounts(at(status, "allocatable")),
        plugin_gpus={
            key: text
            for key, text in texts(status, "allocatable").items()
            if key.startswith(_PLUGIN_GPUS) and key not in NODE_RESOURCES and text != "0"
        },
        operator=names.LABEL_DEPLOY_DEVICE_PLUGIN in texts(metadata, "labels"),
        front_end=texts(metadata, "labels").get(names.LABEL_FRONT_END, ""),
        written={
            key for key, by in writers(raw, "status", "capacity").items() if names.AGENT in by
        },
    )


def entries(device: Json) -> Sequence[Entry]:
    """Return the Device's GPUs, without unreadable entries."""
    listed = []
    for raw in objects(at(device, "spec"), "devices"):
        uuid, minor = raw.get("id"), raw.get("minor")
        memory = _amounts(at(raw, "resources")).get(names.RESOURCE_MEMORY, 0)
        if raw.get("type") != names.DEVICE_TYPE_GPU or not isinstance(uuid, str) or not memory:
            continue
        if not isinstance(minor, int) or isinstance(minor, bool) or minor < 0:
            continue
        place, labels = at(raw, "topology"), texts(raw, "labels")
        numa, root, bus_id = place.get("nodeID"), place.get("pcieID"), place.get("busID")
        gpu = Gpu(
            uuid,
            minor,
            memory,
            numa if isinstance(numa, int) and numa >= 0 else None,
            root if isinstance(root, str) else "",
            labels.get(names.LABEL_GPU_LINK, ""),
            str(_health(raw).get("message", "")),
            bus_id=bus_id if isinstance(bus_id, str) else "",
            model=labels.get(names.LABEL_GPU_MODEL, ""),
        )
        listed.append(Entry(gpu, raw.get("health") is True))
    return listed


def bound(raw: Json) -> Bound:
    metadata, status = at(raw, "metadata"), at(raw, "status")
    annotations, labels = texts(metadata, "annotations"), texts(metadata, "labels")
    provider = labels.get(names.LABEL_ISOLATION_PROVIDER)
    finished = status.get("phase") in _FINISHED
    placed = [c for c in objects(status, "conditions") if c.get("type") == "PodScheduled"]
    return Bound(
        pod=Pod(
            uid=str(metadata.get("uid", "")),
            namespace=str(metadata.get("namespace", "")),
            name=str(metadata.get("name", "")),
            labels={} if provider is None else {names.LABEL_ISOLATION_PROVIDER: provider},
            annotations={key: annotations[key] for key in _OURS if key in annotations},
        ),
        scheduled=str(placed[0].get("lastTransitionTime") or _AT_SOME_TIME) if placed else "",
        finished=finished,
        requested={} if finished else _requested(at(raw, "spec")),
        is_ours=at(raw, "spec").get("schedulerName") == names.SCHEDULER_NAME,
        writer=sys.intern(annotations.get(names.ANNOTATION_WRITER, "")),
        awaits_claims=status.get("phase") == "Pending"
        and ("resourceClaims" in at(raw, "spec") or "extendedResourceClaimStatus" in status),
    )


def _requested(spec: Json) -> Mapping[str, int]:
    """Return a pod's requests by resource, as the kubelet counts them: the sum of its containers
    and sidecars. If an init container plus the sidecars before it is more, that counts instead."""
    lasting = dict.fromkeys(NODE_RESOURCES, 0)
    peak = dict.fromkeys(NODE_RESOURCES, 0)
    # An init container with restartPolicy Always is a sidecar, which runs as long as its pod.
    inits = objects(spec, "initContainers")
    containers = [(raw, raw.get("restartPolicy") != "Always") for raw in inits]
    containers += [(raw, False) for raw in objects(spec, "containers")]
    for raw, is_init in containers:
        resources = at(raw, "resources")
        requests = _amounts({**at(resources, "limits"), **at(resources, "requests")})
        for key in NODE_RESOURCES:
            amount = requests.get(key, 0)
            if is_init:
                peak[key] = max(peak[key], lasting[key] + amount)
            else:
                lasting[key] += amount
    overhead = _amounts(at(spec, "overhead"))
    most = {key: max(peak[key], lasting[key]) + overhead.get(key, 0) for key in NODE_RESOURCES}
    return {key: amount for key, amount in most.items() if amount}


# --- writing -------------------------------------------------------------------------------------


def capacity(totals: Mapping[str, int], facts: NodeFacts) -> Json | None:
    """Return the patch of nodes/status that sets these totals. None: they are set already.

    The patch also sets allocatable, which the kubelet updates only later. It removes the totals of
    a dialect that is off now, because the kubelet would still admit pods by them.
    """
    changes = {
        where: {
            **{
                key: str(total)
                for key, total in totals.items()
                if here.get(key) != total and (total or key in here)
            },
            **dict.fromkeys(sorted(facts.written & here.keys() - totals.keys())),
        }
        for where, here in (("capacity", facts.capacity), ("allocatable", facts.allocatable))
    }
    changes = {where: each for where, each in changes.items() if each}
    return {"status": changes} if changes else None


def isolates() -> Json:
    """Return the patch of a Node that sets the label for isolation."""
    return {"metadata": {"labels": {names.LABEL_ISOLATION_PROVIDER: names.ISOLATION_PROVIDER}}}


def device(
    node_name: str, node_uid: str, listed: Sequence[Entry], current: Json = NOTHING, now: str = ""
) -> Json | None:
    """Return the desired Device. None: the existing Device needs no change. current: the existing
    Device, or empty. now: RFC 3339, or "" for an older CRD of Device, which has no conditions.

    Entries of other types are kept, because Koordinator's agent writes them. The resourceVersion
    is kept, so that the API server rejects the write after a concurrent change.
    """
    owner = _node(node_name, node_uid)
    metadata = at(current, "metadata")
    is_now = objects(at(current, "spec"), "devices")
    others = [each for each in is_now if each.get("type") != names.DEVICE_TYPE_GPU]
    were = {str(each.get("id")): _health(each) for each in is_now}
    conditions = {
        entry.gpu.uuid: [_condition(entry, were.get(entry.gpu.uuid, NOTHING), now)]
        for entry in listed
        if now
    }
    shall = [*(_entry(entry, conditions.get(entry.gpu.uuid, ())) for entry in listed), *others]
    owners = objects(metadata, "ownerReferences")
    owned = [o.get("uid") for o in owners if o.get("kind") == "Node"] == [node_uid]
    if current and owned and is_now == shall:
        return None
    version = {key: metadata[key] for key in ("resourceVersion",) if key in metadata}
    kept = [each for each in owners if each.get("kind") != "Node"]
    return {
        "apiVersion": names.DEVICE_API_VERSION,
        "kind": names.DEVICE_KIND,
        "metadata": {"name": node_name, "ownerReferences": [owner, *kept], **version},
        "spec": {"devices": shall},
    }


def has_conditions(device: Json) -> bool:
    """Whether the API server stored conditions in this Device."""
    return any(map(_health, objects(at(device, "spec"), "devices")))


def _health(entry: Json) -> Json:
    """Return the condition in a GPU's entry that states why the GPU is unhealthy, or empty."""
    conditions = [c for c in objects(entry, "conditions") if c.get("type") == _HEALTHY]
    return conditions[0] if conditions else NOTHING


def _condition(entry: Entry, was: Json, now: str) -> Json:
    status = str(entry.offered)
    since = was.get("lastTransitionTime") if was.get("status") == status else None
    return {
        "type": _HEALTHY,
        "status": status,
        "reason": _reason(entry),
        "message": (entry.gpu.problem or entry.why)[:_NOTE_MAX],
        "lastTransitionTime": since or now,
    }


def _reason(entry: Entry) -> str:
    if not entry.healthy:
        return "Unusable"
    return "Usable" if entry.offered else entry.mode.value


def _entry(entry: Entry, conditions: Sequence[Json]) -> Json:
    gpu = entry.gpu
    labels = {
        names.LABEL_GPU_LINK: gpu.link,
        names.LABEL_GPU_MODEL: gpu.model,
        names.LABEL_GPU_MEMORY_LIMITS: entry.limits,
    }
    known = {key: value for key, value in labels.items() if value}
    return {
        "type": names.DEVICE_TYPE_GPU,
        "id": gpu.uuid,
        "minor": gpu.minor,
        # False for a whole or excluded GPU too: Koordinator's scheduler reads only this field.
        "health": entry.offered,
        **({"labels": known} if known else {}),
        "resources": {
            names.RESOURCE_CORE: str(PERCENT),
            names.RESOURCE_MEMORY: str(gpu.memory_bytes),
            names.RESOURCE_MEMORY_RATIO: str(PERCENT),
        },
        "topology": {
            "socketID": _UNKNOWN,
            "nodeID": _UNKNOWN if gpu.numa is None else gpu.numa,
            "pcieID": gpu.root,
            **({"busID": gpu.bus_id} if gpu.bus_id else {}),
        },
        **({"conditions": conditions} if conditions else {}),
    }


def lease(node_name: str, node_uid: str, renewed: str, ready: str) -> Json:
    """Return the agent's Lease, which its Node owns. renewed: RFC 3339 with microseconds. ready:
    "true", or why the agent is not ready."""
    owner = _node(node_name, node_uid)
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "namespace": names.NAMESPACE,
            "name": f"{names.LEASE_AGENT_PREFIX}{node_name}",
            "annotations": {names.ANNOTATION_READY: ready},
            **({"ownerReferences": [owner]} if node_uid else {}),
        },
        "spec": {
            "holderIdentity": node_name,
            "leaseDurationSeconds": names.AGENT_LEASE_EXPIRED_AFTER_S,
            "renewTime": renewed,
        },
    }


def event(notice: Notice, text: str, node_name: str, node_uid: str, name: str, now: str) -> Json:
    """Return an events.k8s.io/v1 Event for the notice's pod or for the node. text: the notice's
    text, made printable. now: RFC 3339 with microseconds."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": notice.pod.namespace,
        "name": notice.pod.name,
        "uid": notice.pod.uid,
    }
    if notice.of_node:
        about = {"regarding": _node(node_name, node_uid), "related": pod}
    else:
        about = {"regarding": pod}
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": about["regarding"].get("namespace", _NO_NAMESPACE), "name": name},
        "eventTime": now,
        "reportingController": "gpuslice.io/agent",
        "reportingInstance": node_name[:_INSTANCE_MAX],
        "action": notice.action,
        "reason": notice.reason,
        "type": "Warning" if notice.warning else "Normal",
        "note": text[:_NOTE_MAX],
        **about,
    }


def _node(name: str, uid: str) -> Json:
    return {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}


# --- JSON ----------------------------------------------------------------------------------------


def _amounts(raw: Json) -> Mapping[str, int]:
    """Return the readable amounts of the resources that agents report."""
    amounts = {key: quantity.parse(raw.get(key)) for key in NODE_RESOURCES}
    return {key: each.amount for key, each in amounts.items() if isinstance(each, quantity.Value)}
