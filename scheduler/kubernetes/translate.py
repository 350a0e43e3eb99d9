"""Reads Kubernetes objects: nodes, inventories, and what pods hold.

Unreadable parts, which other programs may write, are left out and reported. If a pod's holdings are
unreadable, the pod counts as holding the most that it may hold.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from gpuslice.contract import allocation, grants, names, quantity
from gpuslice.contract.dialects import KOORDINATOR
from gpuslice.kube.fields import NOTHING, Json, at, objects, texts
from scheduler.core.fleet import MAX_BYTES, MIN_BYTES, Gpu
from scheduler.core.request import WHOLE_PERCENT, ContainerRequest, Phase, Request, Requirement
from scheduler.dialects.reading import RequestError
from scheduler.dialects.table import READERS
from scheduler.kubernetes import requests
from scheduler.kubernetes.facts import (
    BudgetFacts,
    DeviceFacts,
    Held,
    HeldGpu,
    NodeFacts,
    PodFacts,
    Unreadable,
)

_FINISHED: Final = frozenset({"Succeeded", "Failed"})

# --- PodDisruptionBudgets ------------------------------------------------------------------------

_NEGATED: Final = {"In": False, "NotIn": True, "Exists": False, "DoesNotExist": True}


def budget(raw: Json) -> BudgetFacts:
    """Read the PodDisruptionBudget. The API server has validated it."""
    metadata, status = at(raw, "metadata"), at(raw, "status")
    selector = at(at(raw, "spec"), "selector")
    labels = texts(selector, "matchLabels").items()
    lines = [Requirement(key, frozenset((value,))) for key, value in labels]
    for each in objects(selector, "matchExpressions"):
        values = frozenset(each.get("values") or ())
        negated = _NEGATED[each["operator"]]
        lines.append(Requirement(each["key"], values or None, negated))
    return BudgetFacts(
        name=f"{metadata.get('namespace')}/{metadata.get('name')}",
        selector=tuple(lines),
        allowed=int(status.get("disruptionsAllowed") or 0),
        disrupted=frozenset(at(status, "disruptedPods")),
    )


# --- what a pod holds ----------------------------------------------------------------------------


def pod(raw: Json) -> PodFacts:
    """Read the pod. No content written by its author or a scheduler raises an exception."""
    metadata, spec = at(raw, "metadata"), at(raw, "spec")
    node = str(spec.get("nodeName") or "")
    finished = str(at(raw, "status").get("phase")) in _FINISHED
    held, problem = _held(raw) if node and not finished else ((), "")
    return PodFacts(
        uid=str(metadata.get("uid", "")),
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata.get("name", "")),
        node=node,
        finished=finished,
        held=held,
        problem=problem,
        priority=priority if isinstance(priority := spec.get("priority"), int) else 0,
        terminating=is_deleting(raw),
        labels=texts(metadata, "labels") if held else NOTHING,
    )


def uid(raw: Json) -> str:
    return str(at(raw, "metadata").get("uid", ""))


def is_deleting(raw: Json) -> bool:
    return "deletionTimestamp" in at(raw, "metadata")


def mark(raw: Json) -> int:
    """Return a hash of the fields that `pod` reads, and for a pod without a node of those that make
    a nomination. Fields that cannot change, such as what containers request, are not hashed."""
    node, status = at(raw, "spec").get("nodeName"), at(raw, "status")
    if not node:
        return hash((str(status.get("nominatedNodeName")), is_deleting(raw)))
    metadata = at(raw, "metadata")
    written = (frozenset(texts(metadata, key).items()) for key in ("labels", "annotations"))
    return hash((node, status.get("phase") in _FINISHED, is_deleting(raw), *written))


def _held(raw: Json) -> tuple[Held, str]:
    """Return what the pod holds, and a problem of its annotations. The grants record each
    container's shares, and are preferred to the allocation, which records the pod's maximum."""
    annotations = texts(at(raw, "metadata"), "annotations")
    allocated, problem = _read_allocation(annotations.get(names.ANNOTATION_DEVICE_ALLOCATED))
    text = annotations.get(names.ANNOTATION_GRANTS)
    if text is not None:
        try:
            return _held_by_containers(raw, grants.decode(text), allocated), problem
        except grants.GrantsError as error:
            problem = problem or f"annotation {names.ANNOTATION_GRANTS}: {error}"
    if allocated:
        try:
            return tuple(_held_gpu(entry) for entry in allocated), problem
        except allocation.AllocationError as error:
            problem = f"annotation {names.ANNOTATION_DEVICE_ALLOCATED}: {error}"
    # If another scheduler bound the pod without an allocation, only Koordinator's keys count.
    is_ours = at(raw, "spec").get("schedulerName") == names.SCHEDULER_NAME
    readers = READERS if problem or is_ours else {KOORDINATOR: READERS[KOORDINATOR]}
    held: Held
    try:
        requested = requests.requested(raw, readers)
        # A pod without a request holds nothing, whatever its annotations claim.
        held = Unreadable(requested) if requested else ()
    except RequestError:
        held = Unreadable(None)
    if problem:
        return held, problem
    return (), "bound without an allocation: it has no GPU" if held else ""


def _read_allocation(text: str | None) -> tuple[Sequence[allocation.DeviceEntry], str]:
    """Return the GPUs that the allocation lists (none if it is absent), and its problem."""
    try:
        return () if text is None else allocation.decode(text).gpus, ""
    except allocation.AllocationError as error:
        return (), f"annotation {names.ANNOTATION_DEVICE_ALLOCATED}: {error}"


def _held_gpu(entry: allocation.DeviceEntry) -> HeldGpu:
    memory = entry.resources.get(names.RESOURCE_MEMORY)
    ratio = entry.resources.get(names.RESOURCE_MEMORY_RATIO)
    if memory is None and ratio is None:
        raise allocation.AllocationError(
            f"minor {entry.minor}: {names.RESOURCE_MEMORY} is not there, nor its ratio"
        )
    core = entry.resources.get(names.RESOURCE_CORE)
    return HeldGpu(
        entry.id,
        entry.minor,
        None if memory is None else min(memory, MAX_BYTES),
        None if core is None else min(core, WHOLE_PERCENT),
        min(ratio or 0, WHOLE_PERCENT),
    )


def _held_by_containers(
    raw: Json, granted: grants.Grants, allocated: Sequence[allocation.DeviceEntry]
) -> Sequence[HeldGpu]:
    """Return the most that containers hold of each GPU at the same time. If the allocation has less
    than 100 percent of core, or none, a grant of 100 percent is only a limit."""
    most_core = {e.id: e.resources.get(names.RESOURCE_CORE, 0) for e in allocated}
    shares_of: dict[tuple[str, int], list[tuple[str, int, int | None]]] = {}
    for name, gpus in granted.items():
        for gpu in gpus:
            is_limit = gpu.core_percent == WHOLE_PERCENT > most_core.get(gpu.id, WHOLE_PERCENT)
            core = None if is_limit else gpu.core_percent
            share = (name, min(gpu.memory_bytes, MAX_BYTES), core)
            shares_of.setdefault((gpu.id, gpu.minor), []).append(share)
    amounts = []
    for (uuid, minor), shares in sorted(shares_of.items(), key=lambda each: each[0][1]):
        _, size, held_core = shares[0]
        if len(shares) > 1:
            size, held_core = _peak(raw, shares)
        amounts.append(HeldGpu(uuid, minor, size, held_core))
        if held_core is not None and any(core is None for _, _, core in shares):
            amounts.append(HeldGpu(uuid, minor, 0, None))
    return tuple(amounts)


def _peak(raw: Json, shares: Sequence[tuple[str, int, int | None]]) -> tuple[int, int | None]:
    """Return the bytes and core that the pod holds of one GPU. shares: for each container with a
    share of that GPU, the name, the bytes and the core, None for a container that holds none."""
    phases = {name: (phase, order) for name, phase, order, _ in requests.container_phases(raw)}
    containers = []
    for name, size, core in shares:
        phase, order = phases.get(name, (Phase.MAIN, 0))
        containers.append(ContainerRequest(name, phase, order, 1, core, size))
    return Request(containers).peak_of(MAX_BYTES)


# --- nodes and inventory -------------------------------------------------------------------------


def node(raw: Json) -> NodeFacts:
    metadata = at(raw, "metadata")
    annotations, labels = texts(metadata, "annotations"), texts(metadata, "labels")
    provider = labels.get(names.LABEL_ISOLATION_PROVIDER, "")
    return NodeFacts(
        name=str(metadata.get("name", "")),
        uid=str(metadata.get("uid", "")),
        isolates=provider.lower() == names.ISOLATION_PROVIDER,
        cordoned=_uuids(annotations, names.ANNOTATION_CORDONED_GPUS),
        excluded=_uuids(annotations, names.ANNOTATION_EXCLUDED_GPUS),
        partitioned=labels.get(names.LABEL_PARTITION_POLICY) == "Honor",
    )


def _uuids(annotations: Mapping[str, str], key: str) -> frozenset[str]:
    listed = (each.strip() for each in annotations.get(key, "").split(","))
    return frozenset(each for each in listed if each)


def device(raw: Json) -> DeviceFacts:
    """Read a Device. GPUs that cannot be read are left out and become problems."""
    metadata = at(raw, "metadata")
    owners = [o for o in objects(metadata, "ownerReferences") if o.get("kind") == "Node"]
    listed = at(raw, "spec").get("devices")
    readable = listed is None or isinstance(listed, list)
    gpus: dict[str, Gpu] = {}
    problems: list[str] = (
        [] if readable else [f"Device: {_invalid('spec.devices', listed, 'a list')}"]
    )
    for index, entry in enumerate(objects(at(raw, "spec"), "devices")):
        if entry.get("type") != names.DEVICE_TYPE_GPU:
            continue
        gpu = _gpu(entry)
        if isinstance(gpu, str):
            problems.append(f"Device: spec.devices[{index}]: {gpu}; the GPU is left out")
        elif gpu.uuid in gpus:
            where = f"spec.devices[{index}].id"
            problems.append(f"Device: {_invalid(where, gpu.uuid, 'unique')}")
        else:
            gpus[gpu.uuid] = gpu
    ordered = sorted(gpus.values(), key=lambda gpu: (gpu.minor, gpu.uuid))
    if len(ordered) > names.MAX_GPUS:
        problems.append(
            f"Device: {len(ordered)} GPUs; those behind the first {names.MAX_GPUS} are left out"
        )
    return DeviceFacts(
        name=str(metadata.get("name", "")),
        node_uid=str(owners[0].get("uid", "")) if owners else "",
        gpus=tuple(ordered[: names.MAX_GPUS]),
        problems=tuple(problems),
        readable=readable,
    )


def _gpu(entry: Json) -> Gpu | str:
    """Return the GPU, or the error in its entry. A GPU is unusable unless reported healthy."""
    uuid, minor = entry.get("id"), entry.get("minor")
    if not isinstance(uuid, str) or not uuid:
        return _invalid("id", uuid, "the UUID of a GPU")
    if not isinstance(minor, int) or isinstance(minor, bool) or not 0 <= minor < 2**31:
        return _invalid("minor", minor, "a whole number from 0")
    resources = {
        names.DEPRECATED_RESOURCES.get(key, key): value
        for key, value in at(entry, "resources").items()
    }
    text = resources.get(names.RESOURCE_MEMORY)
    memory = quantity.parse(text)
    if not isinstance(memory, quantity.Value) or not MIN_BYTES <= memory.amount <= MAX_BYTES:
        allowed = f"a quantity from {MIN_BYTES} to {MAX_BYTES} bytes"
        return _invalid(f"resources.{names.RESOURCE_MEMORY}", text, allowed)
    topology, labels = at(entry, "topology"), texts(entry, "labels")
    numa, root = topology.get("nodeID"), topology.get("pcieID")
    return Gpu(
        uuid,
        minor,
        memory.amount,
        usable=entry.get("health") is True,
        numa=numa if isinstance(numa, int) and numa >= 0 else None,
        root=root if isinstance(root, str) and root else None,
        link=labels.get(names.LABEL_GPU_LINK),
        labels=labels,
        model=labels.get(names.LABEL_GPU_MODEL, ""),
    )


def _invalid(field: str, value: object, allowed: str) -> str:
    """Return an error in Kubernetes' form that quotes the object's value."""
    if value is None:
        return f"{field}: required value: must be {allowed}"
    return f"{field}: invalid value {json.dumps(value)}: must be {allowed}"
