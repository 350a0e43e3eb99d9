"""Reads a pod to be placed: its name, and its Request or the reason for refusing it.

Pure. RequestError's text is for the pod's author. Pods of one owner have equal requests, so recent
results are cached by every input that they depend on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import quote

from gpuslice.contract import names, quantity
from gpuslice.contract.dialects import Dialect
from gpuslice.kube.fields import Json, at, objects, texts
from scheduler.core.request import Phase, Request
from scheduler.dialects import table
from scheduler.dialects.koordinator import correct_name
from scheduler.dialects.reading import (
    Container,
    PodFields,
    Reader,
    RequestError,
    Writer,
    invalid,
    no_outputs,
)
from scheduler.dialects.table import DEFAULT, Enabled

_MAX_CACHED: Final = 256
MAX_CONTAINERS: Final = 32
"""Limit of containers that request shares. The work per pod grows with them, on an event loop that
all tenants share."""
_MAX_CHARACTERS: Final = 16384
"""Size limit of a cached input: all of them together take a few megabytes."""

_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_AFFINITIES: Final = ("nodeAffinity", "podAffinity", "podAntiAffinity")


def pod_path(namespace: str, name: str) -> str:
    """The pod's path at the API server."""
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"


# --- requests


_LABELS: Final = frozenset({names.LABEL_ISOLATION_PROVIDER})
"""A dialect reads these. Others differ between the pods of a StatefulSet or an indexed Job."""


class ParsedRequest(NamedTuple):
    """A pod's request, with what its dialect adds to the Binding, and texts for an event."""

    request: Request
    outputs: Writer = no_outputs
    notices: Sequence[str] = ()


def request(pod: Json, enabled: Enabled = DEFAULT) -> Request | None:
    """The pod's request; None: no share, so any node will do. Raises RequestError."""
    parsed = read(pod, enabled)
    return None if parsed is None else parsed.request


def read(pod: Json, enabled: Enabled) -> ParsedRequest | None:
    """Read what `request` reads, and the rest. enabled: the dialects that are on."""
    fields = _fields(pod)
    try:
        key = repr(fields), enabled
    except RecursionError:
        return _checked(fields, enabled)
    if key in _cached:
        _cached[key] = parsed = _cached.pop(key)
        return parsed
    parsed = _checked(fields, enabled)
    if len(key[0]) <= _MAX_CHARACTERS:
        _cached[key] = parsed
        if len(_cached) > _MAX_CACHED:
            del _cached[next(iter(_cached))]
    return parsed


_cached: dict[tuple[str, Enabled], ParsedRequest | None] = {}
"""By the text of PodFields: pods of one owner differ only in their names, which no dialect reads.
The least recently used ones are dropped."""


def requested(pod: Json, readers: Mapping[Dialect, Reader] = table.READERS) -> Request | None:
    """Read what `request` reads, under any resource names: a bound pod was understood by some
    scheduler."""
    parsed = _interpret(_fields(pod), None, readers)
    return None if parsed is None else parsed.request


def container_phases(pod: Json) -> Iterator[tuple[str, Phase, int, Json]]:
    """Each container's name, phase, order and object."""
    spec = at(pod, "spec")
    for order, raw in enumerate(objects(spec, "initContainers")):
        sidecar = raw.get("restartPolicy") == "Always"
        yield str(raw.get("name", "")), Phase.SIDECAR if sidecar else Phase.INIT, order, raw
    for order, raw in enumerate(objects(spec, "containers")):
        yield str(raw.get("name", "")), Phase.MAIN, order, raw


def _fields(pod: Json) -> PodFields:
    metadata, spec = at(pod, "metadata"), at(pod, "spec")
    containers = []
    for name, phase, order, raw in container_phases(pod):
        resources = at(raw, "resources")
        limits, requests = at(resources, "limits"), at(resources, "requests")
        privileged = at(raw, "securityContext").get("privileged") is True
        containers.append(Container(name, phase, order, limits, requests, privileged))
    return PodFields(
        str(spec.get("schedulerName", "")),
        texts(metadata, "annotations"),
        {key: text for key, text in texts(metadata, "labels").items() if key in _LABELS},
        at(spec, "overhead"),
        containers,
    )


def _checked(pod: PodFields, enabled: Enabled) -> ParsedRequest | None:
    """Also refuses names and amounts that the API server would refuse: the pod may not have passed
    it."""
    for container in pod.containers:
        for key, value in (*container.limits.items(), *container.requests.items()):
            if must_be := correct_name(key):
                raise invalid(container.field("resource name"), key, must_be)
            amount = quantity.parse(value) if key in table.RESOURCES else None
            if isinstance(amount, quantity.Value) and amount.rounded:
                raise invalid(container.field(key), value, "a whole number")
    return _interpret(pod, enabled)


def _interpret(
    pod: PodFields, enabled: Enabled, readers: Mapping[Dialect, Reader] = table.READERS
) -> ParsedRequest | None:
    reading = table.read(pod, enabled, readers)
    if reading is None:
        return None
    _refuse_foreign(pod, reading.foreign)
    container_names = [container.name for container in reading.containers]
    if len(container_names) > MAX_CONTAINERS:
        requesting = f"{len(container_names)} containers that request a share of a GPU"
        must_be = f"at most {MAX_CONTAINERS}; request shares in fewer containers"
        raise invalid("spec", requesting, must_be)
    if len(set(container_names)) < len(container_names):
        raise invalid("containers", ", ".join(container_names), "unique names")
    request = Request(
        reading.containers, reading.policy, reading.selector, reading.scope, reading.isolation
    )
    return ParsedRequest(request, reading.outputs, reading.notices)


def _refuse_foreign(pod: PodFields, foreign: frozenset[str]) -> None:
    """Refuses resources that another component allocates: bound by this scheduler, the pod would
    run without them."""
    for key, value in pod.overhead.items():
        if key in table.RESOURCES:
            raise invalid(f"spec.overhead[{key}]", value, "absent; request shares in containers")
    for container in pod.containers:
        for written, value in {**container.limits, **container.requests}.items():
            key = names.DEPRECATED_RESOURCES.get(written, written)
            if key not in foreign or quantity.parse(value) == quantity.Value(0):
                continue
            why = (
                "another component or dialect allocates it; for a whole GPU request"
                f" {names.RESOURCE_GPU}: 100"
                if key in names.RESOURCES_WHOLE
                else "only Koordinator's own scheduler allocates it"
            )
            must_be = f"absent in a pod that requests a share of a GPU, as {why}"
            raise invalid(container.field(key), value, must_be)


# --- identity of the pod


@dataclass(frozen=True, slots=True)
class Pending:
    """version: the pod's resourceVersion when it was read. profile: its schedulerName. priority:
    orders kube-scheduler's queue. prefers: the pod has preferences among nodes, which
    kube-scheduler weighs. constraints: equal for pods whose selectors and tolerations are equal.
    nominated: status.nominatedNodeName, "" for none. requeued_at: the annotation, "" for none.
    request: None for a pod without a share and for a refused one; refusal: the reason. outputs,
    notices: of the request's dialect."""

    uid: str
    version: str
    profile: str
    prefers: bool
    request: Request | None
    refusal: str = ""
    namespace: str = ""
    name: str = ""
    priority: int = 0
    constraints: int = 0
    nominated: str = ""
    requeued_at: str = ""
    outputs: Writer = no_outputs
    notices: Sequence[str] = ()

    @property
    def pod_key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def path(self) -> str:
        """Return the path at the API server."""
        return pod_path(self.namespace, self.name)


def pending(pod: Json, enabled: Enabled = DEFAULT) -> Pending:
    """Never raises for content that the pod's author wrote. enabled: the dialects that are on."""
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    parsed, refusal = None, ""
    try:
        parsed = read(pod, enabled)
    except RequestError as error:
        refusal = str(error)
    return Pending(
        uid=str(metadata.get("uid", "")),
        version=str(metadata.get("resourceVersion", "")),
        profile=str(spec.get("schedulerName", "")),
        prefers=any(_preferences(spec)),
        request=parsed.request if parsed else None,
        refusal=refusal,
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata.get("name", "")),
        priority=int(spec.get("priority") or 0),
        constraints=_constraints(spec),
        nominated=str((pod.get("status") or {}).get("nominatedNodeName") or ""),
        requeued_at=texts(metadata, "annotations").get(names.ANNOTATION_REQUEUED_AT, ""),
        outputs=parsed.outputs if parsed else no_outputs,
        notices=parsed.notices if parsed else (),
    )


def was_refused(pod: Json) -> bool:
    """Whether kube-scheduler found no node at its last try."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(
        each.get("type") == "PodScheduled" and each.get("reason") == "Unschedulable"
        for each in conditions
    )


def _constraints(spec: Json) -> int:
    affinity = spec.get("affinity") or {}
    read = (spec.get("nodeSelector"), affinity.get("nodeAffinity"), spec.get("tolerations"))
    return hash(repr((spec.get("schedulerName"), *read)))


def _preferences(spec: Json) -> Iterator[object]:
    affinity = spec.get("affinity") or {}
    for kind in _AFFINITIES:
        yield (affinity.get(kind) or {}).get(_PREFERRED)
    for constraint in spec.get("topologySpreadConstraints") or ():
        yield constraint.get("whenUnsatisfiable") == "ScheduleAnyway"
