"""Reads a pod to be placed: its name, and its Request or the reason for refusing it.

The text of a RequestError is for the pod's author. Recent results are cached by all fields that
determine them, because the pods of one owner, such as a Deployment, have equal requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import quote

from gpuslice.contract import names, quantity
from gpuslice.contract.dialects import HAMI_CORE_POLICY, Dialect
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
"""The most containers of a pod that may request shares. The work for a pod grows with their number
and blocks the event loop for other pods."""
_MAX_CHARACTERS: Final = 16384
"""The most characters of a cached input. The whole cache then takes at most a few megabytes."""

MAX_ANNOTATIONS: Final = 256 << 10
"""The most bytes of a pod's annotations. The API server does not check them at a Binding. A bound
pod with more would run, and the kubelet could not report its status."""

_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_AFFINITIES: Final = ("nodeAffinity", "podAffinity", "podAntiAffinity")


def pod_path(namespace: str, name: str) -> str:
    """Return the pod's path at the API server."""
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"


# --- requests


_LABELS: Final = frozenset({names.LABEL_ISOLATION_PROVIDER})
"""The labels that dialects read. Other labels may differ among the pods of one owner, such as a
StatefulSet, which would defeat the cache."""


class ParsedRequest(NamedTuple):
    """A pod's request. outputs, notices: see `Reading`."""

    request: Request
    outputs: Writer
    notices: Sequence[str]


def request(pod: Json, enabled: Enabled = DEFAULT) -> Request | None:
    """Return the pod's request, or None if it requests no share. Raise RequestError."""
    parsed = read(pod, enabled)
    return None if parsed is None else parsed.request


def read(pod: Json, enabled: Enabled) -> ParsedRequest | None:
    """Return the pod's request with outputs and notices. enabled: the dialects that are on."""
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
"""Results by the text of PodFields, which is equal for pods of one owner. The least recently used
result is dropped for a new one."""


def requested(pod: Json, readers: Mapping[Dialect, Reader] = table.READERS) -> Request | None:
    """Return a bound pod's request in any dialect and without checks of resource names, because
    some scheduler has accepted the pod."""
    parsed = _interpret(_fields(pod), None, readers)
    return None if parsed is None else parsed.request


def container_phases(pod: Json) -> Iterator[tuple[str, Phase, int, Json]]:
    """Yield each container's name, phase, order and object."""
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
        env = [each for each in objects(raw, "env") if each.get("name") == HAMI_CORE_POLICY]
        core_policy = str(env[-1].get("value") or "") if env else ""
        containers.append(Container(name, phase, order, limits, requests, privileged, core_policy))
    return PodFields(
        str(spec.get("schedulerName", "")),
        texts(metadata, "annotations"),
        {key: text for key, text in texts(metadata, "labels").items() if key in _LABELS},
        at(spec, "overhead"),
        containers,
    )


def _checked(pod: PodFields, enabled: Enabled) -> ParsedRequest | None:
    """Return the pod's request. Refuse also the names and amounts that the API server refuses,
    because `simulate` reads pods that were never sent to the API server."""
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
    """Refuse resources that another component allocates: the pod would run without them."""
    for key, value in pod.overhead.items():
        if key in table.RESOURCES:
            raise invalid(f"spec.overhead[{key}]", value, "absent; request shares in containers")
    for container in pod.containers:
        for written, value in {**container.limits, **container.requests}.items():
            key = names.DEPRECATED_RESOURCES.get(written, written)
            is_mig = key.startswith(names.RESOURCE_MIG_PREFIX)
            if not (is_mig or key in foreign) or quantity.parse(value) == quantity.Value(0):
                continue
            why = (
                "another component or dialect allocates it; for a whole GPU request"
                f" {names.RESOURCE_GPU}: 100"
                if is_mig or key in names.RESOURCES_WHOLE
                else "only Koordinator's own scheduler allocates it"
            )
            must_be = f"absent in a pod that requests a share of a GPU, as {why}"
            raise invalid(container.field(key), value, must_be)


# --- identity of the pod


@dataclass(frozen=True, slots=True)
class Pending:
    """A pod to be placed. version: its resourceVersion when it was read. profile: its
    schedulerName. prefers: whether it has preferences among nodes. request: None for a pod without
    a share, and for a refused pod. refusal: why the request is refused; "" if it is not. priority:
    its priority in kube-scheduler's queue. constraints: equal for pods with equal node selectors
    and tolerations. nominated: status.nominatedNodeName, or "". requeued_at: the annotation, or "".
    outputs, notices: see `Reading`."""

    uid: str
    version: str
    profile: str
    prefers: bool
    request: Request | None
    refusal: str
    namespace: str
    name: str
    priority: int
    constraints: int
    nominated: str
    requeued_at: str
    outputs: Writer
    notices: Sequence[str]

    @property
    def pod_key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def path(self) -> str:
        """Return the pod's path at the API server."""
        return pod_path(self.namespace, self.name)


def pending(pod: Json, enabled: Enabled = DEFAULT) -> Pending:
    """Read the pod. No content written by its author raises an exception."""
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    parsed, refusal = None, ""
    try:
        parsed = read(pod, enabled)
        if parsed:
            _refuse_large(texts(metadata, "annotations"), parsed.request)
    except RequestError as error:
        parsed, refusal = None, str(error)
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


def _refuse_large(annotations: Mapping[str, str], request: Request) -> None:
    """Refuse annotations that leave no room for those of the Binding."""
    size = sum(len(key) + len(text.encode(errors="replace")) for key, text in annotations.items())
    most = MAX_ANNOTATIONS - 2048 - 384 * sum(each.gpus for each in request.containers)
    if size > most:
        must_be = f"at most {most} bytes, because the pod's GPUs are added to its annotations"
        raise invalid("metadata.annotations", f"of {size} bytes", must_be)


def was_refused(pod: Json) -> bool:
    """Return whether kube-scheduler found no node at its last try."""
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
