"""Reads a pod to be placed: its name, and its Request or the reason for refusing it.

Pure. RequestError's text is for the pod's author. Pods of one owner have equal requests, so recent
results are cached by every input that they depend on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from contract import names, quantity
from scheduler.core.request import Phase, Policy, Request
from scheduler.kubernetes import dialects
from scheduler.kubernetes.dialects import Container, RequestError, read_hints

Json = Mapping[str, Any]

_NOTHING: Final[Json] = {}
_FOREIGN: Final = frozenset((*names.RESOURCES_WHOLE, *names.RESOURCES_KOORDINATOR_ONLY))
_REMEMBERED: Final = 256
MAX_CONTAINERS: Final = 32
"""Limit of containers that request shares. The work per pod grows with them, on an event loop that
all tenants share."""
_MAX_CHARACTERS: Final = 16384
"""Size limit of a cached input: all of them together take a few megabytes."""

_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_AFFINITIES: Final = ("nodeAffinity", "podAffinity", "podAntiAffinity")

# --- fields of JSON objects; a field of another type counts as absent


def at(raw: Json, key: str) -> Json:
    """The object at the key; empty if there is none."""
    found = raw.get(key)
    return found if isinstance(found, dict) else _NOTHING


def objects(raw: Json, key: str) -> Sequence[Json]:
    """The objects in the list at the key."""
    found = raw.get(key)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def texts(raw: Json, key: str) -> Mapping[str, str]:
    """The strings in the object at the key."""
    return {name: text for name, text in at(raw, key).items() if isinstance(text, str)}


# --- requests


class _Said(NamedTuple):
    """Everything in a pod that determines its request, as JSON. isolation: the label; None: absent.
    containers: name, phase, order, limits and requests of each."""

    annotations: Json
    isolation: str | None
    overhead: Json
    containers: Sequence[tuple[str, str, int, Json, Json]]


def request(pod: Json) -> Request | None:
    """The pod's request; None: no share, so any node will do. Raises RequestError."""
    said = _said(pod)
    try:
        text = json.dumps(said)
    except (TypeError, ValueError, RecursionError):
        return _request(said)  # read from a file: YAML has types that JSON lacks
    return _remembered(text) if len(text) <= _MAX_CHARACTERS else _request(said)


def requested(pod: Json) -> Request | None:
    """As `request`, but accepts any resource names: a bound pod was understood by some
    scheduler."""
    return _asked(_said(pod))


def lives(pod: Json) -> Iterator[tuple[str, Phase, int, Json]]:
    """Each container's name, phase, order and object."""
    spec = at(pod, "spec")
    for order, raw in enumerate(objects(spec, "initContainers")):
        sidecar = raw.get("restartPolicy") == "Always"
        yield str(raw.get("name", "")), Phase.SIDECAR if sidecar else Phase.INIT, order, raw
    for order, raw in enumerate(objects(spec, "containers")):
        yield str(raw.get("name", "")), Phase.MAIN, order, raw


def _said(pod: Json) -> _Said:
    metadata = at(pod, "metadata")
    written = []
    for name, phase, order, raw in lives(pod):
        resources = at(raw, "resources")
        amounts = at(resources, "limits"), at(resources, "requests")
        written.append((name, phase.value, order, *amounts))
    return _Said(
        texts(metadata, "annotations"),
        texts(metadata, "labels").get(names.LABEL_ISOLATION_PROVIDER),
        at(at(pod, "spec"), "overhead"),
        written,
    )


@lru_cache(_REMEMBERED)
def _remembered(text: str) -> Request | None:
    return _request(_Said(*json.loads(text)))


def _request(said: _Said) -> Request | None:
    for name, _, _, limits, requests in said.containers:
        for key, value in (*limits.items(), *requests.items()):
            if must := dialects.misnamed(key):
                raise RequestError(f"container {name}: resource name: invalid value {key}: {must}")
            read = quantity.parse(value) if key in dialects.RESOURCES else None
            if isinstance(read, quantity.Value) and read.rounded:
                # The API server refuses fractions too, but this pod may not have passed it.
                raise RequestError(
                    f"container {name}: {key}: invalid value {value}: must be a whole number"
                )
    return _asked(said)


def _asked(said: _Said) -> Request | None:
    containers = [_container(*each) for each in said.containers]
    asks = dialects.read(containers)
    if not asks:
        return None
    isolation = _wants_isolation(said.isolation)
    _refuse_foreign(said.overhead, containers)
    named = [ask.container for ask in asks]
    if len(named) > MAX_CONTAINERS:
        raise RequestError(
            f"spec: invalid value {len(named)} containers that request a share of a GPU: must be at"
            f" most {MAX_CONTAINERS}; request shares in fewer containers"
        )
    if len(set(named)) < len(named):
        raise RequestError(f"containers: invalid value {', '.join(named)}: must be unique names")
    selector, scope = read_hints(said.annotations, asks)
    return Request(asks, _policy(said.annotations), selector, scope, isolation)


def _container(name: str, phase: str, order: int, limits: Json, requests: Json) -> Container:
    """A request has precedence over a limit of the same name; the API server requires both to be
    equal."""
    amounts: dict[str, object] = {}
    for kind, there in (("limits", limits), ("requests", requests)):
        for key, value in there.items():
            canonical = names.DEPRECATED_RESOURCES.get(key, key)
            if canonical != key and canonical in there:
                raise RequestError(
                    f"container {name}: {kind}: invalid value {key} and {canonical}: must be"
                    f" {canonical} alone, as the other is its old name"
                )
            amounts[canonical] = value
    return Container(name, Phase(phase), order, amounts)


def _refuse_foreign(overhead: Json, containers: Sequence[Container]) -> None:
    """Refuses resources that another component allocates: bound by this scheduler, the pod would
    run without them."""
    for key, value in overhead.items():
        if key in dialects.RESOURCES:
            raise RequestError(
                f"spec.overhead[{key}]: invalid value {value}: must be absent; request shares in"
                " containers"
            )
    for container in containers:
        for key, value in container.resources.items():
            if key not in _FOREIGN or quantity.parse(value) == quantity.Value(0):
                continue
            why = (
                f"a device plugin allocates it; for a whole GPU request {names.RESOURCE_GPU}: 100"
                if key in names.RESOURCES_WHOLE
                else "only Koordinator's own scheduler allocates it"
            )
            raise RequestError(
                f"container {container.name}: {key}: invalid value {value}: must be absent in a pod"
                f" that requests a share of a GPU, as {why}"
            )


def _wants_isolation(value: str | None) -> bool:
    if value is not None and value.lower() != names.ISOLATION_PROVIDER:
        raise RequestError(
            f"metadata.labels[{names.LABEL_ISOLATION_PROVIDER}]: invalid value {value!r}: must be"
            f" {names.ISOLATION_PROVIDER}, in upper or lower case"
        )
    return value is not None


def _policy(annotations: Mapping[str, str]) -> Policy | None:
    text = annotations.get(names.ANNOTATION_POLICY)
    if text is None:
        return None
    try:
        return Policy(text)
    except ValueError:
        allowed = ", ".join(policy.value for policy in Policy)
        raise RequestError(
            f"metadata.annotations[{names.ANNOTATION_POLICY}]: invalid value {text!r}: must be one"
            f" of {allowed}"
        ) from None


# --- identity of the pod


@dataclass(frozen=True, slots=True)
class Pending:
    """version: the pod's resourceVersion when it was read. profile: its schedulerName. priority:
    orders kube-scheduler's queue. prefers: the pod has preferences among nodes, which
    kube-scheduler weighs. request: None for a pod without a share and for a refused one; refusal:
    the reason."""

    uid: str
    version: str
    profile: str
    prefers: bool
    request: Request | None
    refusal: str = ""
    namespace: str = ""
    name: str = ""
    priority: int = 0

    @property
    def pod_key(self) -> str:
        return f"{self.namespace}/{self.name}"


def pending(pod: Json) -> Pending:
    """Never raises for content that the pod's author wrote."""
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    requested, refusal = None, ""
    try:
        requested = request(pod)
    except RequestError as error:
        refusal = str(error)
    return Pending(
        uid=str(metadata.get("uid", "")),
        version=str(metadata.get("resourceVersion", "")),
        profile=str(spec.get("schedulerName", "")),
        prefers=any(_preferences(spec)),
        request=requested,
        refusal=refusal,
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata.get("name", "")),
        priority=int(spec.get("priority") or 0),
    )


def was_refused(pod: Json) -> bool:
    """Whether kube-scheduler found no node at its last try."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(
        each.get("type") == "PodScheduled" and each.get("reason") == "Unschedulable"
        for each in conditions
    )


def _preferences(spec: Json) -> Iterator[object]:
    affinity = spec.get("affinity") or {}
    for kind in _AFFINITIES:
        yield (affinity.get(kind) or {}).get(_PREFERRED)
    for constraint in spec.get("topologySpreadConstraints") or ():
        yield constraint.get("whenUnsatisfiable") == "ScheduleAnyway"
