"""Koordinator's dialect: containers request shares as resources.

Each container's request counts separately, while Koordinator's own scheduler sums the containers of
a pod. Koordinator's hints on acceptable GPUs become the selector and the scope of the request. Its
label makes the request require isolation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gpuslice.contract import names
from gpuslice.contract.dialects import KOORDINATOR, LEAST_MIB
from scheduler.core.fleet import MAX_BYTES
from scheduler.core.request import (
    WHOLE_PERCENT,
    ContainerRequest,
    Requirement,
    Scope,
    ratio_of_percent,
)
from scheduler.dialects.reading import (
    MIB_BYTES,
    Container,
    PodFields,
    Reading,
    RequestError,
    annotation,
    invalid,
)

_GPU: Final = names.RESOURCE_GPU
_CORE: Final = names.RESOURCE_CORE
_MEMORY: Final = names.RESOURCE_MEMORY
_RATIO: Final = names.RESOURCE_MEMORY_RATIO
_SHARED: Final = names.RESOURCE_SHARED

RESOURCES: Final = frozenset(KOORDINATOR.resources)

_SHOWN_CHARS: Final = 40
"""The most characters of an invalid annotation that a message shows."""

_MAX_CHARACTERS: Final = 16384
"""The most characters of a hint: each of its requirements is compared with every kind of GPU."""

_OF_GPUS: Final = ("koordinator.sh/gpu", "kubernetes.io/gpu", "aliyun.com/gpu-")

_ALLOWED: Final = (
    f"{_GPU} alone, or one of {_MEMORY} and {_RATIO}, optionally with {_CORE} and {_SHARED}"
)


def correct_name(resource: str) -> str:
    """Return what an invalid name of a GPU resource must be, or "" if the name is valid. A pod with
    an invalid name would wait for ever, because no node has that resource. Koordinator's scheduler
    translates old names before it schedules, but the stock kube-scheduler does not."""
    if resource in RESOURCES or not resource.lower().startswith(_OF_GPUS):
        return ""
    if resource == names.RESOURCE_ALIBABA_MEMORY:
        return f"{_MEMORY}, in bytes"
    new = names.DEPRECATED_RESOURCES.get(resource)
    return f"one of {', '.join(sorted(RESOURCES))}" if new is None else new


def read(pod: PodFields) -> Reading | None:
    """Read the pod's request. Source: koordinator pkg/scheduler/plugins/deviceshare (utils.go,
    devicehandler_gpu.go), and its webhook, which changes some requests before they are placed."""
    requests = [
        _container_request(container, asked)
        for container in pod.containers
        if (asked := _amounts(container))
    ]
    if not requests:
        return None
    isolation = _requires_isolation(pod.labels.get(names.LABEL_ISOLATION_PROVIDER))
    selector, scope = _hints(pod.annotations, requests)
    return Reading(requests, None, selector, scope, isolation)


def _requires_isolation(value: str | None) -> bool:
    if value is not None and value.lower() != names.ISOLATION_PROVIDER:
        field = f"metadata.labels[{names.LABEL_ISOLATION_PROVIDER}]"
        raise invalid(field, repr(value), f"{names.ISOLATION_PROVIDER}, in upper or lower case")
    return value is not None


# --- amounts -------------------------------------------------------------------------------------


def _amounts(container: Container) -> Mapping[str, int]:
    """Return the requested amounts of share resources, without zeros. A request has precedence over
    the limit of the same resource. The API server requires the two to be equal."""
    written: dict[str, object] = {}
    for there in (container.limits, container.requests):
        for key, value in there.items():
            canonical = names.DEPRECATED_RESOURCES.get(key, key)
            if canonical == key or canonical not in there:
                written[canonical] = value
    amounts = {name: container.amount(name, written.get(name)) for name in KOORDINATOR.resources}
    return {name: requested for name, requested in amounts.items() if requested}


def _container_request(container: Container, asked: Mapping[str, int]) -> ContainerRequest:
    one_memory = (_MEMORY in asked) != (_RATIO in asked)
    if asked.keys() != {_GPU} and (_GPU in asked or not one_memory):
        written = ", ".join(f"{name}={amount}" for name, amount in asked.items())
        raise invalid(container.field("resources"), written, _ALLOWED)
    gpus = _gpus(asked)
    if gpus > names.MAX_GPUS:
        raise invalid(container.field("number of GPUs"), gpus, f"1 to {names.MAX_GPUS}")
    percent = {
        name: _percent(container.field(name), asked[name], gpus, _SHARED in asked)
        for name in (_GPU, _CORE, _RATIO)
        if name in asked
    }
    core = percent.get(_GPU, percent.get(_CORE))
    if _MEMORY in asked:
        field = container.field(_MEMORY)
        bounds = LEAST_MIB * MIB_BYTES, MAX_BYTES
        memory = _of_each(field, asked[_MEMORY], gpus, bounds, "bytes")
        return container.request(gpus, core, memory)
    ratio = ratio_of_percent(percent[_GPU if _GPU in asked else _RATIO])
    return container.request(gpus, core, memory_ratio=ratio)


def _gpus(asked: Mapping[str, int]) -> int:
    """Return the number of GPUs over which the amounts are divided. If there is no ratio, core
    decides, as in Koordinator's webhook: 200 percent of core needs two GPUs."""
    if _SHARED in asked:
        return asked[_SHARED]
    percent = asked.get(_GPU) or asked.get(_RATIO) or asked.get(_CORE) or WHOLE_PERCENT
    return percent // WHOLE_PERCENT if percent % WHOLE_PERCENT == 0 else 1


def _percent(field: str, total: int, gpus: int, even: bool) -> int:
    """Return the percent per GPU. even: the pod sets the number of GPUs by gpu.shared, so this
    number must divide the total."""
    if even and total % gpus:
        raise invalid(field, total, f"a multiple of {_SHARED}, {gpus}")
    if not even and total > WHOLE_PERCENT and total % WHOLE_PERCENT:
        must_be = f"1 to {WHOLE_PERCENT}, or a multiple of {WHOLE_PERCENT} for whole GPUs"
        raise invalid(field, total, must_be)
    return _of_each(field, total, gpus, (1, WHOLE_PERCENT), "percent")


def _of_each(field: str, total: int, gpus: int, bounds: tuple[int, int], unit: str) -> int:
    each, (least, most) = total // gpus, bounds
    if not least <= each <= most:
        of_gpus = f"{gpus} GPU{'s' if gpus > 1 else ''}"
        raise invalid(field, total, f"{least * gpus} to {most * gpus} {unit} for {of_gpus}")
    return each


# --- Koordinator's hints -------------------------------------------------------------------------

_SCOPES: Final = {
    "Device": Scope.DEVICE,
    "PCIe": Scope.PCIE,
    "NUMANode": Scope.NUMA_NODE,
    "Node": Scope.NODE,
}
_OPERATORS: Final = {"In": False, "NotIn": True, "Exists": False, "DoesNotExist": True}
_NOT_HONOURED: Final = (names.ANNOTATION_JOINT_ALLOCATE, names.ANNOTATION_PARTITION_SPEC)


def _hints(
    annotations: Mapping[str, str], requests: Sequence[ContainerRequest]
) -> tuple[Sequence[Requirement], Scope]:
    """Return the selector and the scope for the pod's GPUs.

    Source: koordinator apis/extension/device_share.go.
    """
    for key in _NOT_HONOURED:
        if key in annotations:
            raise RequestError(
                f"{annotation(key)}: must be absent, as gpuslice does not support it; use"
                f" {names.ANNOTATION_ALLOCATE_HINT} instead"
            )
    text = annotations.get(names.ANNOTATION_ALLOCATE_HINT)
    if text is None:
        return (), Scope.NODE
    where = annotation(names.ANNOTATION_ALLOCATE_HINT)
    if len(text) > _MAX_CHARACTERS:
        raise RequestError(
            f"{where}: invalid value of {len(text)} characters: must have at most {_MAX_CHARACTERS}"
        )
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        shown = text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
        raise invalid(where, repr(shown), f"JSON: {error}") from error
    gpu = _object(where, document, names.DEVICE_TYPE_GPU).get(names.DEVICE_TYPE_GPU)
    where = f"{where}: {names.DEVICE_TYPE_GPU}"
    hint = _object(where, gpu, "requiredTopologyScope", "selector")
    return _selector(f"{where}.selector", hint.get("selector")), _scope(where, hint, requests)


def _scope(where: str, hint: Mapping[str, Any], requests: Sequence[ContainerRequest]) -> Scope:
    text = hint.get("requiredTopologyScope")
    if text in (None, ""):
        return Scope.NODE
    scope = _SCOPES.get(text) if isinstance(text, str) else None
    where = f"{where}.requiredTopologyScope"
    if scope is None:
        raise invalid(where, repr(text), f"one of {', '.join(_SCOPES)}")
    if scope is Scope.DEVICE and any(requested.gpus > 1 for requested in requests):
        must_be = "one of PCIe, NUMANode, Node, as a container requests several GPUs"
        raise invalid(where, repr(text), must_be)
    return scope


def _selector(where: str, raw: object) -> Sequence[Requirement]:
    selector = _object(where, raw, "matchExpressions", "matchLabels")
    lines = []
    for key, value in _object(f"{where}.matchLabels", selector.get("matchLabels")).items():
        if not isinstance(value, str):
            raise invalid(f"{where}.matchLabels.{key}", repr(value), "a string")
        lines.append(Requirement(key, frozenset({value})))
    expressions = selector.get("matchExpressions") or []
    if not isinstance(expressions, list):
        raise RequestError(f"{where}.matchExpressions: must be a list")
    for index, expression in enumerate(expressions):
        lines.append(_expression(f"{where}.matchExpressions[{index}]", expression))
    return tuple(lines)


def _expression(where: str, raw: object) -> Requirement:
    expression = _object(where, raw, "key", "operator", "values")
    key, operator = expression.get("key"), expression.get("operator")
    values = expression.get("values") or []
    if not isinstance(key, str) or not key:
        raise invalid(f"{where}.key", repr(key), "a label's key")
    if not isinstance(operator, str) or operator not in _OPERATORS:
        raise invalid(f"{where}.operator", repr(operator), f"one of {', '.join(_OPERATORS)}")
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise invalid(f"{where}.values", repr(values), "strings")
    needs_values = operator in ("In", "NotIn")
    if needs_values != bool(values):
        must_be = f"{'one or more' if needs_values else 'empty'} with {operator}"
        raise invalid(f"{where}.values", repr(values), must_be)
    return Requirement(key, frozenset(values) if needs_values else None, _OPERATORS[operator])


def _object(where: str, raw: object, *honoured: str) -> Mapping[str, Any]:
    """Return `raw` as an object. If `honoured` is given, refuse other keys, except those with an
    empty value, which requests nothing."""
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise RequestError(f"{where}: must be an object, not {type(raw).__name__}")
    for key in sorted(raw.keys() - set(honoured or raw)):
        if raw[key]:
            raise invalid(where, key, f"one of {', '.join(honoured)}")
    return raw
